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


def test_a_device_of_the_table_is_shown_without_trying_anything(capsys):
    assert main(["doctor", "--device", "H100-80GB"]) == 0
    shown = capsys.readouterr().out
    for said in ("Memory of H100-80GB, nearest first", "3,352 GB/s", "15,459", "270,336",
                 "threads=256 registers=64 ", "50.0%"):  # fmt: skip
        assert said in shown
    assert "checks" not in shown


def test_a_device_as_json_has_its_levels_and_its_block(capsys):
    words = ["--block", "threads=384 registers=168 shared=100KiB", "--json"]
    assert main(["doctor", "--device", "B200", *words]) == 0
    told = json.loads(capsys.readouterr().out)
    (block,) = told["occupancy"]
    assert (block["blocks"], block["limited_by"]) == (1, ["registers"])
    assert told["chip"]["multiprocessors"] == 148
    levels = {level["name"]: level for level in told["levels"]}
    assert levels["device memory"]["flops_per_byte"] == 281.25


def test_this_machine_has_levels_too_and_its_processor_no_multiprocessors(capsys):
    assert main(["doctor", "--device", "here", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["levels"][-1]["name"] in ("host memory", "other nodes, Ethernet, a device's share")
    if told["device"] == "CPU":
        assert told["chip"] is None and told["occupancy"] == []
        assert main(["doctor", "--device", "here"]) == 0
        assert "Multiprocessors are known of A100-40GB," in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--block", "threads=32"], "--block: no device is named for it. Add --device H100-80GB"),
        (["--device", "H1000"], "device: 'H1000' is not in the device table. Nearest: H100-80GB"),
        (["--device", "L4", "--block", "threads=32"],
         "block: the multiprocessors of L4 are unknown. Name another device: A100-40GB,"),
    ],
)  # fmt: skip
def test_a_mistake_about_a_device_is_one_line(capsys, words, said):
    assert main(["doctor", *words]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1
