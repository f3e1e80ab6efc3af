"""Several ranks in one test: they add up, failures are named, nothing hangs, nothing is left."""

import os
import time

import pytest
import torch
import torch.distributed as dist

from stepladder.errors import LostRank, PlanError, WorldError

from .ranks import POOL, run


def add_up(base: int) -> tuple[int, int, float]:
    value = torch.tensor(float(base + dist.get_rank()))
    dist.all_reduce(value)
    return dist.get_rank(), dist.get_world_size(), value.item()


def fail_on(rank: int) -> None:
    if dist.get_rank() == rank:
        raise PlanError("batch", f"rank {rank} says no")
    dist.barrier()


def fail_everywhere() -> None:
    raise PlanError("batch", "all say no")


class Stubborn(Exception):
    def __init__(self, first: str, second: str) -> None:
        super().__init__(first)


def fail_stubbornly() -> None:
    raise Stubborn("cannot travel", "")


def hang_on(rank: int, seconds: float) -> None:
    if os.environ["RANK"] == str(rank):
        time.sleep(seconds)


def die_on(rank: int) -> None:
    if dist.get_rank() == rank:
        os._exit(7)


def leave_a_mess() -> None:
    os.environ["STEPLADDER_MESS"] = "1"
    torch.set_default_dtype(torch.float64)
    torch.use_deterministic_algorithms(True)
    torch.set_grad_enabled(False)
    torch.set_num_threads(2)
    torch.rand(3)


def look_around() -> tuple[object, ...]:
    return (
        os.environ.get("STEPLADDER_MESS"),
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_grad_enabled(),
        torch.get_num_threads(),
        torch.initial_seed(),
    )


def launcher_variables() -> tuple[str, str, str, bool]:
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
    return (*(os.environ[name] for name in names), dist.is_initialized())


def pids() -> list[int | None]:
    return [worker.process.pid for worker in POOL.workers]


def test_every_rank_gets_its_place_and_they_add_up():
    assert run(add_up, 2, 10) == [(0, 2, 21.0), (1, 2, 21.0)]


def test_processes_are_kept_between_calls_and_their_number_may_change():
    run(add_up, 2, 0)
    before = pids()
    assert run(add_up, 1, 5) == [(0, 1, 5.0)]
    assert run(add_up, 2, 1) == [(0, 2, 3.0), (1, 2, 3.0)]
    assert pids() == before


@pytest.mark.parametrize("rank", [0, 1])
def test_a_failing_rank_is_named_and_its_error_keeps_its_type(rank):
    with pytest.raises(PlanError, match=f"batch: rank {rank} says no") as caught:
        run(fail_on, 2, rank)
    (note,) = caught.value.__notes__
    assert note.startswith(f"on rank {rank} of 2:\nTraceback")
    assert "in fail_on" in note


def test_ranks_that_all_fail_are_kept():
    run(add_up, 2, 0)
    before = pids()
    with pytest.raises(PlanError, match="all say no"):
        run(fail_everywhere, 2)
    assert pids() == before
    assert run(add_up, 2, 0)[0] == (0, 2, 1.0)


def test_an_error_that_cannot_travel_arrives_as_text():
    with pytest.raises(WorldError, match="rank [01] of 2 failed with Stubborn: cannot travel"):
        run(fail_stubbornly, 2)


def test_a_hanging_rank_times_out_is_named_and_shows_where_it_stood():
    run(hang_on, 2, 1, 0, init=False)  # loads what the call needs, which is not to count
    with pytest.raises(LostRank, match=r"rank 1 of 2 did not finish within 3 s") as caught:
        run(hang_on, 2, 1, 600, init=False, timeout_seconds=3)
    assert "in hang_on" in caught.value.__notes__[0]
    assert run(add_up, 2, 0) == [(0, 2, 1.0), (1, 2, 1.0)]  # replaced


def test_a_rank_that_dies_is_named_with_its_exit_code():
    with pytest.raises(LostRank, match="rank 1 of 2 ended by itself with exit code 7"):
        run(die_on, 2, 1)


def test_one_that_died_between_two_calls_is_replaced_and_the_new_one_finds_what_others_do():
    run(leave_a_mess, 2)
    POOL.workers[1].process.kill()
    POOL.workers[1].process.wait()
    old, new = run(look_around, 2)
    assert old == new


def test_nothing_is_left_for_the_next_test():
    run(leave_a_mess, 2)
    for seen in run(look_around, 2):
        assert seen == (None, torch.float32, False, True, 1, 0)


def test_without_init_only_the_launchers_variables_are_set():
    assert run(launcher_variables, 2, init=False) == [
        ("0", "0", "2", False),
        ("1", "1", "2", False),
    ]


def test_a_function_that_cannot_be_imported_travels_by_value():
    base = 3
    assert run(lambda more: base + more + dist.get_rank(), 2, 4) == [7, 8]


def leave_early_and_be_asked() -> float:
    """Rank 0 is done at once; rank 1 goes on talking to the store that rank 0 keeps."""
    dist.init_process_group("gloo")
    dist.barrier()
    if dist.get_rank() == 0:
        return 0.0
    time.sleep(0.5)  # in which rank 0 would have left
    store = dist.distributed_c10d._get_default_store()
    store.set("still", "there")
    return float(store.get("still") == b"there")


def test_a_rank_that_is_done_stays_until_all_are():
    assert run(leave_early_and_be_asked, 2, init=False) == [0.0, 1.0]
