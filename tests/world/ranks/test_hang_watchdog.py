"""Real ranks that die or hang while another waits: the one that waits names it and its line."""

import inspect
import os
import subprocess
import sys
import threading
from datetime import timedelta
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _set_pg_timeout

from stepladder.errors import LostRank
from stepladder.plan import Layout
from stepladder.world import Place, World, join_world
from stepladder.world.ranks import hang_watchdog as watch
from tests.ranks import run

pytestmark = pytest.mark.timeout(600)  # ranks that import torch start in minutes in a crowd


def quick_watch(least_seconds):
    """Signs come often; how long one is looked for is the test's affair, not this machine's."""
    how = {"BEAT_SECONDS": 0.5, "MIN_WAIT_SECONDS": least_seconds, "ANSWER_SECONDS": 100}
    return patch.multiple(watch, **how)


def shorten(world, seconds):
    """Have nobody wait longer, now that all have met at the pace of this machine."""
    world.watchdog.timeout_seconds = seconds
    _set_pg_timeout(timedelta(seconds=seconds), world.group("replicate"))


@quick_watch(2)
def wait_for_the_other() -> str:
    world = join_world(Layout(replicate=2), "cpu", timeout_seconds=60)
    world.sum(torch.ones(1), "replicate")
    shorten(world, 2)
    if world.place.rank == 1:
        dist.destroy_process_group()
        return ""
    try:
        with world.explain_hangs():
            world.sum(torch.ones(1), "replicate")
    except LostRank as lost:
        return str(lost)
    return "arrived"


def test_a_rank_that_left_is_named():
    said, _ = run(wait_for_the_other, 2, init=False)
    assert said.startswith("rank 1: gave no sign of life while others waited for it in all_reduce")
    assert "Its own log says how it ended" in said


QUICK = f"{inspect.getsource(quick_watch)}\n{inspect.getsource(shorten)}"
HANGS = f"""
import time, torch
from datetime import timedelta
from unittest.mock import patch
from stepladder.plan import Layout
from stepladder.world import join_world
from stepladder.world.ranks import hang_watchdog as watch
from torch.distributed.distributed_c10d import _set_pg_timeout
{QUICK}
quick_watch(100).start()
world = join_world(Layout(replicate=2), "cpu", timeout_seconds=200)  # they start at their own pace
world.sum(torch.ones(1), "replicate")
shorten(world, 3)
if world.place.rank == 1:
    time.sleep(1000)
with world.explain_hangs():
    world.sum(torch.ones(1), "replicate")
"""


def test_a_rank_that_hangs_is_named_with_its_line_and_the_collective_and_is_ended(tmp_path):
    codes, errors = start(HANGS, 2, tmp_path)
    assert codes == [1, 1]
    called = inspect.getsourcelines(World.sum)[1] + 4
    said = (
        f"rank 1: did not join all_reduce number 2 (called at world.py:{called}) of ranks [0, 1] "
        f"within 3 s; it is at train.py:{line_of('1000', HANGS)} in <module>. "
        "See what it waits for there, or raise run.timeout_seconds."
    )
    assert errors[0].strip().splitlines()[-1].endswith(f"LostRank: {said}")
    assert errors[1].strip().splitlines()[-1] == said  # told by the one that gave it up


def line_of(word: str, script: str) -> int:
    return next(n for n, line in enumerate(script.splitlines(), 1) if word in line)


SCRIPT = f"""
import os, time, torch
from unittest.mock import patch
from stepladder.plan import Layout
from stepladder.world import join_world
from stepladder.world.ranks import hang_watchdog as watch
{QUICK}
quick_watch(5).start()
world = join_world(Layout(replicate=3), "cpu", timeout_seconds=200)  # they start at their own pace
world.sum(torch.ones(1), "replicate")
world.sum(torch.ones(1), "replicate")
if world.place.rank == 1:
    enough = world.watchdog._beat + 3
    while world.watchdog._beat < enough: time.sleep(0.01)  # the last heartbeats are of this line
    os._exit(7)
with world.explain_hangs():
    world.sum(torch.ones(1), "replicate")
"""


def start(script, ranks, tmp_path):
    """Ranks of a script as torchrun starts them, the store with the launcher."""
    path = tmp_path / "train.py"
    path.write_text(script)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    common = {
        "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0",
    }  # fmt: skip
    processes = [
        subprocess.Popen(
            [sys.executable, path], stderr=subprocess.PIPE, text=True,
            env={**os.environ, **common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(ranks)
    ]  # fmt: skip
    try:
        errors = [process.communicate(timeout=400)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [process.returncode for process in processes], errors


@pytest.mark.soak
def test_two_survivors_name_the_same_dead_rank(tmp_path):
    codes, errors = start(SCRIPT, 3, tmp_path)
    assert codes == [1, 7, 1]
    for survivor in (0, 2):
        last = errors[survivor].strip().splitlines()[-1]
        assert "LostRank: rank 1: gave no sign of life" in last
        where = f"it was last at train.py:{line_of('enough:', SCRIPT)} in <module>"
        assert "all_reduce number 3" in last and where in last


STUCK = f"""
import time, torch, torch.distributed as dist
from datetime import timedelta
from unittest.mock import patch
from stepladder.plan import Layout
from stepladder.world import join_world
from stepladder.world.ranks import hang_watchdog as watch
from torch.distributed.distributed_c10d import _set_pg_timeout
{QUICK}
quick_watch(100).start()
world = join_world(Layout(replicate=2), "cpu", timeout_seconds=200)  # they start at their own pace
patient = dist.new_group(timeout=timedelta(seconds=600))  # as NCCL, which does not raise at all
shorten(world, 3)
if world.place.rank == 1:
    time.sleep(1000)
else:
    dist.all_reduce(torch.ones(1), group=patient)
"""


def test_a_rank_that_cannot_be_interrupted_ends_with_the_sentence(tmp_path):
    codes, errors = start(STUCK, 2, tmp_path)
    assert codes[0] == 1
    said = [line for line in errors[0].splitlines() if line.startswith("rank 1: ")]
    assert len(said) == 1
    called, slept = line_of("dist.all_reduce", STUCK), line_of("1000", STUCK)
    assert f"did not join all_reduce number 1 (called at train.py:{called})" in said[0]
    assert f"it is at train.py:{slept} in <module>" in said[0]


def other_error() -> str:
    world = join_world(Layout(replicate=2), "cpu", timeout_seconds=60)
    try:
        with world.explain_hangs():
            torch.ones(2) @ torch.ones(3)
    except RuntimeError as error:
        return type(error).__name__
    return ""


def test_an_error_that_is_not_about_ranks_stays_what_it_is():
    assert run(other_error, 2, init=False) == ["RuntimeError", "RuntimeError"]


@quick_watch(100)
def glitch() -> str:
    world = join_world(Layout(replicate=2), "cpu", timeout_seconds=60)
    try:
        with world.explain_hangs():
            raise RuntimeError("[gloo/x.cc:1] Connection reset")
    except LostRank as lost:
        return str(lost)
    return ""


def test_a_failure_of_the_network_alone_blames_nobody():
    for said in run(glitch, 2, init=False):
        assert said.startswith("world: Connection reset, while every rank is alive and called")


def watches() -> int:
    first, second = (join_world(Layout(replicate=2), "cpu") for _ in range(2))
    return int(first.watchdog is second.watchdog)


def test_worlds_of_the_same_ranks_share_a_watch():
    assert run(watches, 2, init=False) == [1, 1]


@quick_watch(2)
def close_while_it_looks() -> list[str]:
    """What a watch says of a world that was closed while it was about to look."""
    said: list[str] = []
    threading.excepthook = lambda args: said.append(str(args.exc_value))
    others = threading.enumerate()
    one = watch.HangWatchdog(Place(0, 1, launched=True), 60)
    looks, closed, leave_sign = threading.Event(), threading.Event(), one._publish_heartbeat

    def slow():
        sign = leave_sign()
        looks.set()
        closed.wait()
        return sign

    one._publish_heartbeat = slow
    looks.wait()
    dist.destroy_process_group()
    closed.set()
    for thread in set(threading.enumerate()) - set(others):
        thread.join()
    threading.excepthook = threading.__excepthook__
    return said


def test_a_watch_says_nothing_of_a_world_that_is_closed_meanwhile():
    assert run(close_while_it_looks, 1) == [[]]


@patch.object(watch, "BEAT_SECONDS", 100)
def come_out_of_it() -> list[bool]:
    """Whether the watch would end a process, before and after a collective has raised in it."""
    one = watch.HangWatchdog(Place(0, 1, launched=True), 200)
    with patch.object(watch, "read_counts", lambda backend: {0: (2, 1)}):  # one is pending
        one._collective_hangs()
        one._since -= 1000
        found = [one._collective_hangs()]
        try:
            with one.explain_hangs():
                raise RuntimeError("[gloo/x.cc:1] Timed out")
        except LostRank:
            found.append(one._collective_hangs())
    one.close()
    return found


def test_a_process_whose_collective_has_raised_is_not_ended_by_its_watch():
    assert run(come_out_of_it, 1) == [[True, False]]


def test_the_line_is_the_users_and_not_pythons_own():
    name = "test_the_line_is_the_users_and_not_pythons_own"
    assert watch.main_thread_line().endswith(f" in {name}")  # nor the watch's
    assert watch.is_library(os.__file__) and watch.is_library(torch.__file__)
    assert not watch.is_library(__file__) and not watch.is_library(watch.__file__)


def test_ranks_in_different_collectives_are_told_apart():
    """Their counts are equal, and the network is not the first thing to look at."""
    lost = watch.different_calls("Timed out", {1: "net.py:9 in forward", 0: "net.py:7 in forward"})
    assert str(lost) == (
        "world: Timed out, while every rank is alive and called as many collectives: rank 0 at "
        "net.py:7 in forward, rank 1 at net.py:9 in forward. If ranks run different parts of the "
        "module, as by their data, use ddp or zero1; else see the network between the machines, or "
        "raise run.timeout_seconds."
    )


def test_the_line_that_a_collective_failed_in_is_the_users():
    try:
        torch.nn.Linear(2, 2)(torch.ones(3))
    except RuntimeError as error:
        assert watch.raised_at(error).startswith("test_hang_watchdog.py:")
        assert watch.raised_at(error).endswith(
            " in test_the_line_that_a_collective_failed_in_is_the_users"
        )
