"""Checks are tried: they can fail, they end in time, and they leave nothing running."""

from __future__ import annotations

import subprocess
import sys

import psutil
import pytest
import torch

from stepladder.world import MachineCheck
from stepladder.world.machine import check_programs as probe
from stepladder.world.machine import machine_checks as checks
from stepladder.world.machine.machine_checks import (
    ABSENT,
    CHECKS,
    FAILED,
    OK,
    run_probes,
    try_check,
)

on_a_processor = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")


def test_gloo_is_tried_by_two_processes():
    check = try_check("gloo", 200)
    assert (check.name, check.state) == ("gloo", OK), check
    assert check.seen == "all-reduce over 2 ranks on cpu: right"
    assert check.seconds > 0


@on_a_processor
@pytest.mark.parametrize("name", ["pinned memory", "NCCL", "triton"])
def test_no_gpu_is_absent_and_not_a_failure(name):
    check = try_check(name, 10)
    assert check.state == ABSENT and check.seen.startswith("no GPU here")


def test_a_probe_that_fails_gives_its_last_line_and_the_fix():
    check = run_probes([("no-such-probe",)], 200, "Do this.")
    assert check == MachineCheck(FAILED, "KeyError: 'no-such-probe'", "Do this.")


def test_one_failing_rank_of_two_fails_the_check(tmp_path):
    meeting = str(tmp_path / "meeting")
    check = run_probes([("no-such-probe",), ("gloo", "0", "1", meeting)], 200, "fix")
    assert check.state == FAILED and "no-such-probe" in check.seen


def test_a_probe_that_hangs_is_ended_at_the_limit(tmp_path, fresh_python):
    check = run_probes([("gloo", "0", "2", str(tmp_path / "alone"))], 3, "fix")
    # Not by gloo itself, which would give up after a minute and say so.
    assert check == MachineCheck(FAILED, "not finished after 3 s", "fix")
    # Asked for as an attribute, the line of a process that ends meanwhile is None, not an error.
    lines = [" ".join(each.info["cmdline"] or ()) for each in psutil.process_iter(["cmdline"])]
    assert not [line for line in lines if str(tmp_path) in line]


def test_a_wrong_sum_is_not_taken_for_a_right_one(tmp_path):
    # The peer adds 5 where rank 1 should add 2; only the arithmetic can notice.
    meeting = str(tmp_path / "meeting")
    wrong = tmp_path / "wrong.py"
    wrong.write_text(
        "import torch, torch.distributed as dist\n"
        "print('ready', flush=True)\n"
        f"dist.init_process_group('gloo', store=dist.FileStore({meeting!r}, 2), rank=1, "
        "world_size=2)\ndist.all_reduce(torch.full((1024,), 5.0))\n"
    )
    peer = subprocess.Popen(
        [sys.executable, wrong], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        peer.stdout.readline()  # the probe does not wait for ever
        with pytest.raises(RuntimeError, match=r"the sum was 6\.0, not 3\.0"):
            probe.gloo("0", "2", meeting)
    finally:
        peer.communicate(timeout=60)


def test_the_compiler_is_tried_by_building_a_program():
    check = try_check("C++ compiler", 200)
    assert check.state in (OK, ABSENT)
    if check.state == OK:
        assert check.seen.endswith("built and ran a program")


def test_a_compiler_that_cannot_build_fails(tmp_path, monkeypatch):
    broken = tmp_path / "c++"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    check = checks.compiler(60)
    assert check.state == FAILED and str(broken) in check.seen
    assert "returned non-zero exit status 3" in check.seen
    assert check.fix == "Install one, for example: apt install g++."


def test_no_compiler_on_the_path_is_absent(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert checks.compiler(60) == MachineCheck(
        ABSENT,
        "no c++, g++ or clang++ on the path",
        "Install one, for example: apt install g++.",
    )


def test_a_folder_is_made_and_written(tmp_path):
    folder = tmp_path / "new" / "cache"
    assert checks.try_folders([folder]) == MachineCheck(OK, f"wrote to {folder}")
    assert folder.is_dir() and list(folder.iterdir()) == []


def test_a_folder_that_cannot_be_written_fails_with_the_fix(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    check = checks.try_folders([file / "cache"])
    assert check.state == FAILED
    assert check.fix == f"Make {file / 'cache'} writable, or point TORCH_HOME and TMPDIR elsewhere."


def test_too_little_shared_memory_fails_with_the_fix(tmp_path):
    assert checks.try_shared_memory(tmp_path, at_least=1).state == OK
    check = checks.try_shared_memory(tmp_path, at_least=2**60)
    assert check.state == FAILED and "MiB free in" in check.seen
    assert check.fix == "In a container start it with --ipc=host, or --shm-size=8g."
    assert checks.try_shared_memory(tmp_path / "none", at_least=1).state == ABSENT


def test_what_later_checks_need_comes_first():
    names = list(CHECKS)
    assert names.index("C++ compiler") < names.index("torch.compile") == len(names) - 1
    assert names.index("shared memory") < names.index("NCCL")


def test_compilation_is_tried():
    assert try_check("torch.compile", 200).state == OK


def test_compilation_that_takes_too_long_fails_and_says_what_to_do():
    check = try_check("torch.compile", 0.5)
    assert check.state == FAILED and check.seen == "not finished after 0.5 s"
    assert check.fix.startswith("Train with compile=off")
