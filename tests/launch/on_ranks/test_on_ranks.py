"""Ranks from a cell: a function without a file, called on each of several processes."""

import linecache
import os
import pickle
import signal
import sys
import threading
import time
from pathlib import Path

import cloudpickle
import pytest

from stepladder.errors import LostRank, PlanError, StepladderError, WorldError
from stepladder.launch import on_ranks
from stepladder.launch.on_ranks.worker_process import spawn
from tests.processes import ended

NAME = "cell-of-the-test"
CELL = """\
import os, signal, sys, time

OFFSET = 100

class Found:
    def __init__(self, rank): self.rank = rank

def inner(rank):
    if rank == 1:
        print("about to fail")
        raise ValueError("no such thing\\nand more of it")
    time.sleep(600)

def place():
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

def name(word):
    rank, ranks = place()
    print(f"{word} from {rank}")
    print(f"all of {ranks} complain", file=sys.stderr)
    sys.stdout.write("no end of line")
    return rank + OFFSET

def find(): return Found(place()[0])
def fail(): inner(place()[0])
def die():
    if place()[0] == 1: os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)
def leave():
    print("leaving", file=sys.stderr)
    os._exit(3)
def sleep(folder):
    open(os.path.join(folder, str(os.getpid())), "w").close()
    time.sleep(600)
def lock():
    import threading
    return threading.Lock()
"""


@pytest.fixture(scope="module")
def cell():
    """Names as a cell leaves them: in __main__, with a text that only this process knows."""
    names = {"__name__": "__main__"}
    exec(compile(CELL, NAME, "exec"), names)
    linecache.cache[NAME] = (len(CELL), None, CELL.splitlines(True), NAME)
    yield names
    linecache.cache.pop(NAME)


def raises(cell, function, *args, ranks=2, **options):
    with pytest.raises(StepladderError) as caught:
        on_ranks(cell[function], ranks, *args, **options)
    return caught.value


def test_a_function_of_a_cell_is_called_on_every_rank_and_its_output_shown(cell, capfd):
    assert on_ranks(cell["name"], 2, "hello") == [100, 101]
    shown = capfd.readouterr()
    assert sorted(shown.out.splitlines()) == [
        "[rank 1] hello from 1",
        "[rank 1] no end of line",
        "hello from 0",
        "no end of line",
    ]
    assert shown.err.count("all of 2 complain") == 1  # shared: shown once


def test_a_class_of_a_cell_comes_back_as_itself(cell):
    found = on_ranks(cell["find"], 2)
    assert [type(one) for one in found] == [cell["Found"]] * 2
    assert [one.rank for one in found] == [0, 1]


def test_the_first_failure_is_a_line_with_that_ranks_last_lines(cell):
    began = time.monotonic()
    error = raises(cell, "fail")
    assert time.monotonic() - began < 200, "the rank that sleeps was not waited for"
    assert type(error) is WorldError and type(error.__cause__) is ValueError
    assert str(error) == (
        "ranks: rank 1 of 2 failed with ValueError: no such thing. "
        "Its last lines are below. What fails on one rank too is easier to find there."
    )
    assert error._render_traceback_() == [
        f"WorldError: {error}",
        "The last lines of rank 1:\n"
        "about to fail\n"
        '  File "a cell", line 25, in fail\n'
        "    def fail(): inner(place()[0])\n"
        '  File "a cell", line 11, in inner\n'
        '    raise ValueError("no such thing\\nand more of it")\n'
        "ValueError: no such thing\n"
        "and more of it",
    ]


def test_a_rank_that_is_gone_is_named_with_what_ended_it(cell):
    error = raises(cell, "die")
    assert type(error) is LostRank
    assert str(error).startswith("ranks: rank 1 of 2 was ended by SIGKILL. ")
    error = raises(cell, "leave", ranks=1)
    assert str(error).startswith("ranks: rank 0 of 1 ended by itself with exit code 3. ")
    assert error.__notes__ == ["The last lines of rank 0:\nleaving"]


def gone(folder: Path) -> bool:
    return ended(int(path.name) for path in folder.iterdir())


def test_time_that_is_up_ends_all_ranks(cell, tmp_path):
    error = raises(cell, "sleep", str(tmp_path), ranks=1, timeout_seconds=1)
    assert str(error).startswith("ranks: rank 0 of 1 did not finish within 1 s. ")
    assert "in sleep" in error.__notes__[0]
    assert gone(tmp_path)


def test_an_interrupt_ends_all_ranks(cell, tmp_path):
    def interrupt():
        while len(list(tmp_path.iterdir())) < 2:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        on_ranks(cell["sleep"], 2, str(tmp_path))
    thread.join()
    assert gone(tmp_path)


def test_a_rank_ends_when_its_starter_is_gone(cell, tmp_path):
    worker = spawn(None, pipe_output=False)
    call = cloudpickle.dumps((cell["sleep"], (str(tmp_path),)))
    worker.send(pickle.dumps({"call": call, "environment": {}, "path": sys.path}))
    while not list(tmp_path.iterdir()):
        time.sleep(0.01)
    worker.connection.close()  # as the end of a process does
    assert worker.process.wait() == 1
    worker.kill()


def test_a_users_mistake_comes_back_as_it_is():
    def mistaken():
        raise PlanError("batch", "9 rows do not divide into 2", "Use 8 or 10.")

    with pytest.raises(PlanError) as caught:
        on_ranks(mistaken, 1)
    assert str(caught.value) == "batch: 9 rows do not divide into 2. Use 8 or 10."
    assert "PlanError: batch: 9 rows" in caught.value.__notes__[0]


def test_what_cannot_travel_is_told_before_or_after(cell):
    lock = threading.Lock()
    with pytest.raises(WorldError) as caught:
        on_ranks(lambda: lock, 1)
    assert str(caught.value) == (
        "ranks: the function or what it refers to cannot be sent to another process (cannot "
        "pickle '_thread.lock' object). Open files, locks and runs stay where they are: make "
        "them inside the function."
    )
    error = raises(cell, "lock", ranks=1)
    assert "TypeError: what it returned cannot be sent back: cannot pickle" in str(error)


def test_ranks_are_a_number_and_start_no_ranks(monkeypatch, cell):
    assert str(raises(cell, "find", ranks=0)) == (
        "ranks: 0 is not a number of processes. Use 1 or more."
    )
    for name, value in {"RANK": 1, "WORLD_SIZE": 2, "LOCAL_RANK": 1}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "29500")
    assert str(raises(cell, "find")) == (
        "ranks: 2 asked for in a process that is rank 1 of 2. "
        "Call the function itself: its ranks are started already."
    )
