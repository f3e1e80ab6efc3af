"""Kept ranks: they join and add up, failures are one line, no process is left over."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch
import torch.distributed as dist

from stepladder.errors import LostRank, PlanError, WorldError
from stepladder.launch import Ranks
from stepladder.plan import Layout
from stepladder.world import Place, join_world
from tests.processes import ended


def add_up(ways: int, base: float) -> tuple[int, int, float, int]:
    world = join_world(Layout(replicate=ways), "cpu")
    total = world.sum(torch.tensor(base + world.place.rank), "replicate")
    return world.place.local_rank, world.place.local_ranks, total.item(), os.getpid()


def fail_on(rank: int) -> None:
    world = join_world(Layout(replicate=2), "cpu")
    if world.place.rank == rank:
        raise PlanError("batch", f"rank {rank} says no")
    world.sum(torch.ones(1), "replicate")


def divide_on_all() -> float:
    join_world(Layout(replicate=2), "cpu")
    return 1 / 0


class Stubborn(Exception):
    def __init__(self, first: str, second: str) -> None:
        super().__init__(first)


def fail_stubbornly() -> None:
    raise Stubborn("cannot travel\nat all", "")


def return_a_lock() -> object:
    return threading.Lock()


def answer_and_die(rank: int) -> None:
    if Place.from_environment().rank == rank:
        threading.Timer(0.3, os._exit, [3]).start()
    else:
        time.sleep(1)


def hang_on(rank: int) -> None:
    if Place.from_environment().rank == rank:
        time.sleep(600)


def die_on(rank: int, how: str) -> None:
    world = join_world(Layout(replicate=2), "cpu")
    if world.place.rank == rank:
        if how == "exit":
            os._exit(7)
        os.kill(os.getpid(), signal.SIGKILL)
    world.sum(torch.ones(1), "replicate")


def leave_variables() -> int:
    os.environ["STEPLADDER_LEFT"] = "1"
    return torch.get_num_threads()


def look_around() -> tuple[bool, bool]:
    return "STEPLADDER_LEFT" in os.environ, dist.is_initialized()


@pytest.fixture(scope="module")
def pool():
    with Ranks(2, grace_seconds=60) as pool:  # on a busy machine too, a rank that can answer does
        yield pool


def pids(pool: Ranks) -> list[int | None]:
    return [worker.process.pid for worker in pool.workers]


def test_each_rank_has_its_place_and_processes_are_kept_between_calls(pool):
    first, again = pool.call(add_up, 2, 10.0), pool.call(add_up, 2, 20.0)
    assert [answer[:3] for answer in first] == [(0, 2, 21.0), (1, 2, 21.0)]
    assert [answer[:3] for answer in again] == [(0, 2, 41.0), (1, 2, 41.0)]
    assert [answer[3] for answer in first] == [answer[3] for answer in again] == pids(pool)


def test_some_of_the_ranks_are_a_world_of_their_own(pool):
    assert pool.call(add_up, 1, 5.0, ranks=1)[0][:3] == (0, 1, 5.0)


@pytest.mark.parametrize("rank", [0, 1])
def test_the_first_failure_is_raised_with_its_own_line_and_a_note_of_its_rank(pool, rank):
    with pytest.raises(PlanError) as caught:
        pool.call(fail_on, rank)
    assert str(caught.value) == f"batch: rank {rank} says no."
    (note,) = caught.value.__notes__
    assert note.startswith(f"on rank {rank} of 2:\nTraceback") and "in fail_on" in note


def test_an_error_of_no_house_keeps_its_type_and_the_processes_live_on(pool):
    pool.call(look_around)
    before = pids(pool)
    with pytest.raises(ZeroDivisionError):
        pool.call(divide_on_all)
    assert pids(pool) == before
    assert pool.call(add_up, 2, 0.0)[1][2] == 1.0


def test_a_rank_that_dies_after_its_answer_is_named(pool):
    with pytest.raises(LostRank, match="rank 1 of 2 ended by itself with exit code 3"):
        pool.call(answer_and_die, 1)


def test_what_cannot_travel_arrives_as_one_line(pool):
    with pytest.raises(WorldError) as caught:
        pool.call(fail_stubbornly)
    said = str(caught.value)
    assert said.startswith("ranks: rank ") and "failed with Stubborn: cannot travel." in said
    assert "\n" not in said
    with pytest.raises(TypeError, match="cannot pickle '_thread.lock'"):
        pool.call(return_a_lock)


def test_a_hanging_rank_is_named_and_replaced(pool):
    pool.call(look_around)  # both have imported torch by now, which does not count
    before = pids(pool)
    with pytest.raises(LostRank, match=r"rank 1 of 2 did not finish within 3 s") as caught:
        pool.call(hang_on, 1, timeout_seconds=3)
    assert "in hang_on" in caught.value.__notes__[0]
    assert ended([before[1]])
    assert pool.call(add_up, 2, 0.0)[0][2] == 1.0
    after = pids(pool)
    assert after[0] == before[0] and after[1] != before[1]


@pytest.mark.parametrize(
    ("how", "said"),
    [("exit", "ended by itself with exit code 7"), ("kill", "was ended by SIGKILL")],
)
def test_a_death_is_the_cause_and_what_others_noticed_is_not(pool, how, said):
    with pytest.raises(LostRank, match=f"ranks: rank 1 of 2 {said}"):
        pool.call(die_on, 1, how)


def test_a_call_leaves_no_variables_and_no_group_behind(pool):
    pool.call(leave_variables)
    assert pool.call(look_around) == [(False, False)] * 2


def test_the_ranks_share_the_threads_of_this_process(pool):
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(6)
        assert pool.call(leave_variables) == [3, 3]
        assert pool.call(leave_variables, ranks=1) == [6]
    finally:
        torch.set_num_threads(before)


def test_mistakes_are_refused_before_anything_starts(pool):
    with pytest.raises(WorldError, match="0 is not a number of processes"):
        Ranks(0)
    with pytest.raises(WorldError, match=r"3 asked for, of 2. Use 1 to 2, or make more"):
        pool.call(add_up, 3, 0.0, ranks=3)
    with pytest.raises(WorldError, match="what it refers to cannot be sent to another process"):
        pool.call(print, threading.Lock())
    with pytest.raises(WorldError, match=r"used outside their context. Write 'with Ranks\(2\)"):
        Ranks(2).call(add_up, 2, 0.0)


def test_no_process_is_left_and_what_restarts_starts_anew():
    with Ranks(1) as pool:
        ((_, _, total, pid),) = pool.call(add_up, 1, 3.0)
        assert total == 3.0
        pool.restart()
        assert ended([pid])
        ((_, _, _, other),) = pool.call(add_up, 1, 3.0)
    assert other != pid and ended([other])


KILLED = """
import os, sys
from stepladder.launch import Ranks
from tests.launch.on_ranks import test_kept_ranks
if __name__ == "__main__":
    with Ranks(2) as pool:
        pool.call(test_kept_ranks.look_around)
        print(*test_kept_ranks.pids(pool), flush=True)
        pool.call(test_kept_ranks.hang_on, 1)
"""


def test_ranks_end_with_a_parent_that_was_killed(tmp_path):
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, text=True, env=environment
    ) as parent:
        ranks = [int(word) for word in parent.stdout.readline().split()]
        parent.kill()
    assert len(ranks) == 2 and ended(ranks, 60)
