"""The script that Ray is given and what its ranks' words mean; tests/services runs it on Ray."""

import ast
import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from stepladder.errors import PlanError, WorldError
from stepladder.launch import Resources
from stepladder.launch.launchers import OnRay
from stepladder.launch.ray import ray_run
from stepladder.launch.ray.ray_script import (
    STOP,
    die_with_parent,
    forget_failures,
    ray_exit_code,
    ray_script,
    wait,
)
from tests.launch.test_run_request import request_of
from tests.ports import free_port


def test_the_script_says_how_many_workers_what_they_have_and_how_often_again():
    held = Resources(gpus=8, cpus=16, memory_bytes=64 * 2**30)
    said = ray_script(request_of(least=2, most=2, ranks=8, restarts=5, resources=held))
    ast.parse(said)
    assert "num_workers=16," in said and "use_gpu=True," in said
    assert f"resources_per_worker={{'CPU': 2.0, 'GPU': 1.0, 'memory': {8 * 2**30}}}," in said
    assert "FailureConfig(max_failures=5)" in said and "storage_path='/shared/run/ray'" in said
    assert "'words': ['-m', 'stepladder.cli.rank', 'train', '/w/RUN.toml']" in said


def test_gpus_that_ray_cannot_divide_are_said():
    with pytest.raises(PlanError, match=r"^gpus-per-node: 3 do not divide among 2 ranks, and Ray"):
        ray_script(request_of(ranks=2, resources=Resources(gpus=3)))


def test_machines_that_may_leave_are_a_range_of_workers():
    place = OnRay(request_of(least=1, most=4, ranks=2))
    assert "num_workers=(2, 8)," in place.text() and "use_gpu=False," in place.text()


@pytest.mark.parametrize(
    ("words", "failed", "code"),
    [
        ([], False, 0),
        ([], True, 1),
        ([("late", 2, False, False), ("early", 1, False, False)], True, 1),
        ([("lost", 1, False, True), ("batch: 3.", 2, True, False)], True, 2),
        ([("batch: 3.", 2, True, False)], False, 2),
    ],
)
def test_how_it_ended_is_what_the_first_rank_that_failed_says(
    tmp_path, capsys, words, failed, code
):
    (tmp_path / "ranks").mkdir()
    for rank, (line, moment, mistake, follows) in enumerate(words):
        told = {"line": line, "moment": moment, "mistake": mistake, "follows": follows}
        (tmp_path / "ranks" / f"rank-{rank}.error.json").write_text(json.dumps(told))
    assert ray_exit_code(str(tmp_path), failed=failed) == code
    assert capsys.readouterr().err in ("", "early\n", "batch: 3.\n")
    (tmp_path / "ranks" / STOP).touch()
    assert ray_exit_code(str(tmp_path), failed=failed) == 143


def test_what_ranks_said_that_a_smaller_start_is_without_does_not_count(tmp_path):
    logs = tmp_path / "ranks"
    logs.mkdir()
    told = {"line": "lost", "moment": 1, "mistake": False, "follows": True}
    (logs / "rank-1.error.json").write_text(json.dumps(told))
    (logs / "rank-1.out").touch()
    assert ray_exit_code(str(tmp_path), failed=False) == 1
    forget_failures(logs)
    assert ray_exit_code(str(tmp_path), failed=False) == 0
    assert [path.name for path in logs.iterdir()] == ["rank-1.out"]


def test_a_rank_is_asked_to_save_when_the_launcher_was_asked_to_stop(tmp_path):
    ready = "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(143))\n"
    code = f"{ready}print('ready', flush=True)\ntime.sleep(600)\n"
    rank = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    rank.stdout.readline()
    threading.Timer(0.2, (tmp_path / STOP).touch).start()
    assert wait(rank, tmp_path / STOP) == 128 + signal.SIGTERM


def test_a_rank_keeps_the_signal_by_which_it_ends_with_its_worker():
    code = (
        "import ctypes\nfrom stepladder.launch.local.rank_process import begin_rank\nbegin_rank()\n"
        "held = ctypes.c_int()\nctypes.CDLL(None).prctl(2, ctypes.byref(held))\nprint(held.value)"
    )
    command = [sys.executable, "-c", code]
    kept = subprocess.check_output(command, text=True, preexec_fn=die_with_parent)
    assert int(kept) == signal.SIGKILL


def test_without_ray_it_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(ray_run, "find_spec", lambda name: importlib.util.find_spec("no_such"))
    with pytest.raises(WorldError) as refused:
        OnRay(request_of(str(tmp_path / "run"))).start(print, sys.stdout)
    assert str(refused.value) == (
        "ray: needs the package 'ray', which is not installed. "
        "Install it: pip install 'stepladder[ray]'"
    )


@pytest.fixture
def ray_is_there(monkeypatch):
    monkeypatch.setattr(ray_run, "find_spec", lambda name: importlib.util.find_spec("json"))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


def refusal(tmp_path, **request):
    with pytest.raises(WorldError) as refused:
        OnRay(request_of(str(tmp_path / "run"), **request)).start(print, sys.stdout)
    assert not (tmp_path / "run").exists()
    return str(refused.value)


def test_a_cluster_that_does_not_answer_and_a_python_that_is_not_there_are_one_line(
    tmp_path, monkeypatch, ray_is_there
):
    address = f"127.0.0.1:{free_port()}"
    monkeypatch.setenv("RAY_ADDRESS", address)
    assert refusal(tmp_path, python=sys.executable) == (
        f"ray: nobody answers at {address}, as RAY_ADDRESS says (Connection refused). "
        "Start one there, 'ray start --head', or unset it: then one is started here."
    )
    assert refusal(tmp_path, python="/no/python") == (
        "python: there is no /no/python here. Name another with --python."
    )


def test_a_script_that_starts_no_rank_is_told_of_and_ends_when_asked(
    tmp_path, monkeypatch, ray_is_there
):
    monkeypatch.setattr(ray_run, "SILENT_SECONDS", 0)
    deaf = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(600)"
    told = []
    monkeypatch.setattr(ray_run, "ray_script", lambda request: deaf)

    def interrupt():
        while not told:
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    place = OnRay(request_of(str(tmp_path / "run"), python=sys.executable, directory=tmp_path))
    assert place.start(told.append, sys.stdout) == 130
    assert told == [
        f"ray: looking for 1 workers of 1 CPUs each; {tmp_path}/run/ray.log says how it goes"
    ]
    monkeypatch.setattr(ray_run, "ray_script", lambda request: "raise SystemExit(1)")
    monkeypatch.setattr(ray_run, "SILENT_SECONDS", 600)
    assert place.start(told.append, sys.stdout) == 1
    assert told[1:] == [f"ray: no rank was started; {tmp_path}/run/ray.log says why"]
