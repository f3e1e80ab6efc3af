"""Real ranks that die or hang while another waits: the one that waits names it and its line."""

import inspect
import os
import subprocess
import sys
import time

import torch
import torch.distributed as dist

from stepladder.errors import LostRank
from stepladder.plan import Layout
from stepladder.world import World, gather, join, watch

from ..ranks import run


def wait_for_the_other() -> str:
    gather("cpu", timeout_seconds=50, facts={})  # they import at their own pace
    world = join(Layout(replicate=2), "cpu", timeout_seconds=2)
    world.sum(torch.ones(1), "replicate")
    if world.place.rank == 1:
        dist.destroy_process_group()
        return ""
    try:
        with world.explaining():
            world.sum(torch.ones(1), "replicate")
    except LostRank as lost:
        return str(lost)
    return "arrived"


def test_a_rank_that_left_is_named():
    said, _ = run(wait_for_the_other, 2, init=False)
    assert said.startswith("rank 1: gave no sign of life while others waited for it in all_reduce")
    assert "Its own log says how it ended" in said


HANGS = """
import time, torch
from stepladder.plan import Layout
from stepladder.world import gather, join
gather("cpu", timeout_seconds=120, facts={})  # they start at their own pace
world = join(Layout(replicate=2), "cpu", timeout_seconds=3)
world.sum(torch.ones(1), "replicate")
if world.place.rank == 1:
    time.sleep(100)
with world.explaining():
    world.sum(torch.ones(1), "replicate")
"""


def test_a_rank_that_hangs_is_named_with_its_line_and_the_collective_and_is_ended(tmp_path):
    began = time.monotonic()
    codes, errors = start(HANGS, 2, tmp_path)
    assert codes == [1, 1] and time.monotonic() - began < 90
    called = inspect.getsourcelines(World.sum)[1] + 4
    said = (
        f"rank 1: did not join all_reduce number 2 (called at world.py:{called}) of ranks [0, 1] "
        "within 3 s; it is at train.py:9 in <module>. "
        "See what it waits for there, or raise run.timeout_seconds."
    )
    assert errors[0].strip().splitlines()[-1].endswith(f"LostRank: {said}")
    assert errors[1].strip().splitlines()[-1] == said  # told by the one that gave it up


SCRIPT = """
import os, sys, time, torch, torch.distributed as dist
from stepladder.plan import Layout
from stepladder.world import gather, join
gather("cpu", timeout_seconds=120, facts={})  # they start at their own pace
world = join(Layout(replicate=3), "cpu", timeout_seconds=2)
world.sum(torch.ones(1), "replicate")
world.sum(torch.ones(1), "replicate")
if world.place.rank == 1:
    time.sleep(2)
    os._exit(7)
with world.explaining():
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
    errors = [process.communicate(timeout=150)[1] for process in processes]
    return [process.returncode for process in processes], errors


def test_two_survivors_name_the_same_dead_rank(tmp_path):
    codes, errors = start(SCRIPT, 3, tmp_path)
    assert codes == [1, 7, 1]
    for survivor in (0, 2):
        last = errors[survivor].strip().splitlines()[-1]
        assert "LostRank: rank 1: gave no sign of life" in last
        assert "all_reduce number 3" in last and "it was last at train.py:10 in <module>" in last


STUCK = """
import time, torch, torch.distributed as dist
from datetime import timedelta
from stepladder.plan import Layout
from stepladder.world import gather, join
gather("cpu", timeout_seconds=120, facts={})  # they start at their own pace
world = join(Layout(replicate=2), "cpu", timeout_seconds=3)
patient = dist.new_group(timeout=timedelta(seconds=600))  # as NCCL, which does not raise at all
if world.place.rank == 1:
    time.sleep(20)
else:
    dist.all_reduce(torch.ones(1), group=patient)
"""


def test_a_rank_that_cannot_be_interrupted_ends_with_the_sentence(tmp_path):
    codes, errors = start(STUCK, 2, tmp_path)
    assert codes[0] == 1
    said = [line for line in errors[0].splitlines() if line.startswith("rank 1: ")]
    assert len(said) == 1
    assert "did not join all_reduce number 1 (called at train.py:12)" in said[0]
    assert "it is at train.py:10 in <module>" in said[0]


def other_error() -> str:
    world = join(Layout(replicate=2), "cpu", timeout_seconds=10)
    try:
        with world.explaining():
            torch.ones(2) @ torch.ones(3)
    except RuntimeError as error:
        return type(error).__name__
    return ""


def test_an_error_that_is_not_about_ranks_stays_what_it_is():
    assert run(other_error, 2, init=False) == ["RuntimeError", "RuntimeError"]


def glitch() -> str:
    gather("cpu", timeout_seconds=50, facts={})
    world = join(Layout(replicate=2), "cpu", timeout_seconds=2)
    try:
        with world.explaining():
            raise RuntimeError("[gloo/x.cc:1] Connection reset")
    except LostRank as lost:
        return str(lost)
    return ""


def test_a_failure_of_the_network_alone_blames_nobody():
    for said in run(glitch, 2, init=False):
        assert said.startswith("world: Connection reset, while every rank is alive and called")


def watches() -> int:
    first, second = (join(Layout(replicate=2), "cpu") for _ in range(2))
    return int(first.watch is second.watch)


def test_worlds_of_the_same_ranks_share_a_watch():
    assert run(watches, 2, init=False) == [1, 1]


def test_the_line_is_the_users_and_not_pythons_own():
    name = "test_the_line_is_the_users_and_not_pythons_own"
    assert watch.main_thread_line().endswith(f" in {name}")  # nor the watch's
    assert watch.foreign(os.__file__) and watch.foreign(torch.__file__)
    assert not watch.foreign(__file__) and not watch.foreign(watch.__file__)
