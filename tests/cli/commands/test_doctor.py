"""`stepladder doctor`: what it prints, what it returns."""

from __future__ import annotations

import json

import pytest

from stepladder.cli.commands import doctor
from stepladder.cli.main import main
from stepladder.cli.results import tables as show
from stepladder.hardware import find_device
from stepladder.world import MachineCheck, detect_machine
from stepladder.world.machine.machine_checks import ABSENT, CHECKS, FAILED, OK
from stepladder.world.machine.precision_support import PrecisionSupport


@pytest.fixture(scope="module")
def machine():
    return detect_machine()


def test_json_holds_the_machine_its_precisions_and_its_checks(capsys):
    code = main(["doctor", "--json", "--quick", "--limit", "200"])
    told = json.loads(capsys.readouterr().out)
    assert set(told) == {"machine", "packages", "precisions", "checks"}
    states = {check["name"]: check["state"] for check in told["checks"]}
    assert states["gloo"] == OK and "torch.compile" not in states
    assert code == int(FAILED in states.values())
    assert told["precisions"][0]["precision"] == "fp32"
    assert told["machine"]["cluster"].startswith("1 node x ")
    assert told["packages"]["ray"] is None or told["packages"]["ray"][0].isdigit()


def test_a_failed_check_returns_one_and_is_named(capsys):
    # Nothing starts in a hundredth of a second, so whatever runs in a process of its own fails.
    assert main(["doctor", "--quick", "--limit", "0.01"]) == 1
    out = capsys.readouterr().out
    assert "checks failed:" in out and "gloo" in out.splitlines()[-1]
    assert "not finished after 0.01 s" in out


def test_quick_leaves_out_only_the_slow_check():
    whole = doctor.chosen(quick=False)
    assert whole == list(CHECKS)
    assert doctor.chosen(quick=True) == [name for name in whole if name != "torch.compile"]


def test_the_verdict_counts_what_failed_and_absent_is_no_failure():
    good, gone, bad = (MachineCheck(state, "", name=state) for state in (OK, ABSENT, FAILED))
    assert doctor.verdict([good, gone]) == "All 2 checks passed or had nothing to try."
    assert doctor.verdict([good, bad]) == "1 of 2 checks failed: failed."


def test_a_peak_is_shown_in_teraflops_or_as_unknown(machine):
    yes = PrecisionSupport("bf16", "yes", "", 989.4e12)
    assert doctor.peak_words(yes, machine) == 989.4
    assert doctor.peak_words(PrecisionSupport("fp8", "no", "", None), machine) == "-"
    on_cpu = doctor.peak_words(PrecisionSupport("bf16", "yes", "", None), machine)
    assert on_cpu == (
        "unknown" if machine.cluster.device is find_device("CPU") else "unknown device"
    )


def test_a_machine_without_a_gpu_is_told_so_plainly(machine):
    rows = {str(name): str(what) for name, what in doctor.machine_rows(machine)}
    assert rows["torch"] == machine.torch
    assert rows["host memory"] == show.gib(machine.host_memory_bytes)
    if not machine.seen:
        assert rows["device"] == "no GPU; everything runs on the processor"
        assert rows["runtime"] == "processor only"


def test_packages_that_are_not_installed_have_no_version():
    assert doctor.installed("no-such-package") is None
    assert doctor.installed("pytest") is not None
