"""A forked process is, to who starts it and to itself, the new interpreter that was asked for."""

import json
import os
import signal
import subprocess
import sys

import pytest

from tests.forked_processes import new_interpreters

LOOK = """
import json, os, signal, sys
kept = {"words": sys.argv, "name": __name__, "file": __file__, "folder": os.getcwd(),
        "parent": os.getppid(), "variable": os.environ.get("STEPLADDER_TOLD"),
        "leads": os.getsid(0) == os.getpid(), "first": sys.path[0], "hash": hash("rank"),
        "loaded": "torch" in sys.modules, "read": sys.stdin.read()}
print(json.dumps(kept))
print("to stderr", file=sys.stderr)
raise SystemExit(7)
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "look.py"
    path.write_text(LOOK)
    return path


def look(script, *words, variables=None, **how):
    done = subprocess.run(
        [sys.executable, str(script), *words], input="given", capture_output=True, text=True,
        env={**os.environ, "STEPLADDER_TOLD": "yes", **(variables or {})}, timeout=120, **how,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (7, "to stderr\n"), done.stderr
    return json.loads(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="only there can a process adopt another")
def test_a_fork_finds_what_a_new_interpreter_finds(script, tmp_path):
    found = look(script, "a", "b c", cwd=tmp_path, start_new_session=True)
    assert found.pop("loaded"), "it was not forked"
    with new_interpreters():
        expected = look(script, "a", "b c", cwd=tmp_path, start_new_session=True)
    assert not expected.pop("loaded")
    assert found.pop("hash") != expected.pop("hash")
    assert found == expected and found["parent"] == os.getpid()


@pytest.mark.skipif(sys.platform != "linux", reason="only there can a process adopt another")
def test_neighbouring_ranks_hash_strings_differently(script):
    hashes = [look(script, variables={"RANK": str(rank)})["hash"] for rank in range(3)]
    assert hashes[0] != hashes[1] and hashes[0] == hashes[2]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, -15), (signal.SIGKILL, -9)])
def test_a_signal_ends_it_and_is_its_code(tmp_path, number, code):
    path = tmp_path / "wait.py"
    path.write_text("import time\nprint('here', flush=True)\ntime.sleep(600)\n")
    with subprocess.Popen([sys.executable, str(path)], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"here\n"
        process.send_signal(number)
        assert process.wait(60) == code


def test_other_variables_of_python_need_another_interpreter(script):
    assert not look(script, variables={"PYTHONHASHSEED": "1"})["loaded"]
