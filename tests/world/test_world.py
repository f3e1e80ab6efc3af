"""A world of one needs nobody; ranks that join add up along the axes asked for, and no others."""

import os
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import Shard, distribute_tensor

from stepladder.errors import LostRank
from stepladder.plan import AXES, Layout
from stepladder.world import Place, World, join_world
from tests.ranks import run


def test_a_world_of_one_answers_alone(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    world = join_world(Layout(), "cpu")
    assert (world.place, world.mesh, world.is_rank_zero, world.data_index) == (
        Place(),
        None,
        True,
        0,
    )
    assert world.sum(torch.tensor(3.0), *AXES).item() == 3.0
    world.close()
    assert not dist.is_initialized()


def test_a_world_knows_its_share_of_the_data():
    place = Place(rank=5, num_ranks=8)
    world = World(place, torch.device("cpu"), Layout(replicate=2, shard=2, tensor=2))
    assert world.data_index == 2
    assert not world.is_rank_zero


def joined(layout: Layout) -> dict:
    world = join_world(layout, "cpu")
    rank = world.place.rank
    sums = {axis: world.sum(torch.tensor(10.0**rank), axis).item() for axis in AXES}
    seen = {
        "rank": rank,
        "first": world.is_rank_zero,
        "data_index": world.data_index,
        "sums": sums,
        "data": world.sum(torch.tensor(10.0**rank), "replicate", "shard").item(),
        "none": world.sum(torch.tensor(10.0**rank)).item(),
        "backend": dist.get_backend(),
    }
    world.close()
    return {**seen, "left": not dist.is_initialized()}


@pytest.mark.parametrize("axis", AXES)
def test_two_ranks_add_up_along_their_axis_and_no_other(axis):
    results = run(joined, 2, Layout(**{axis: 2}), init=False)
    for rank, seen in enumerate(results):
        alone = 10.0**rank
        assert seen["rank"] == rank
        assert seen["first"] == (rank == 0)
        assert seen["data_index"] == (rank if axis in ("replicate", "shard", "experts") else 0)
        assert seen["sums"] == {other: 11.0 if other == axis else alone for other in AXES}
        assert seen["data"] == (11.0 if axis in ("replicate", "shard") else alone)
        assert seen["none"] == alone
        assert seen["backend"] == "gloo"
        assert seen["left"]


def test_four_ranks_add_up_over_two_axes():
    results = run(joined, 4, Layout(replicate=2, shard=2), init=False, timeout_seconds=120)
    assert [seen["sums"]["replicate"] for seen in results] == [101.0, 1010.0, 101.0, 1010.0]
    assert [seen["sums"]["shard"] for seen in results] == [11.0, 11.0, 1100.0, 1100.0]
    assert {seen["data"] for seen in results} == {1111.0}
    assert [seen["data_index"] for seen in results] == [0, 1, 2, 3]


def join_without_the_other() -> str:
    if os.environ["RANK"] == "1":
        return ""
    try:
        join_world(Layout(replicate=2), "cpu", timeout_seconds=2)
    except LostRank as alone:  # which may come when it is started again: no user's mistake
        return str(alone)
    return "joined"


def test_a_rank_that_never_comes_is_an_error_and_not_a_hang():
    message, _ = run(join_without_the_other, 2, init=False)
    assert message.startswith("world: rank 0 of 2 did not meet the others within 2 s (")
    assert message.endswith(
        "). Check that all ranks started and that MASTER_ADDR and MASTER_PORT lead to rank 0."
    )


def close_a_world() -> int:
    """Threads of groups that earlier worlds left, before one more shares a tensor and is closed."""
    left = 0
    for name in Path("/proc/self/task").glob("*/comm"):
        with suppress(OSError):  # it ended meanwhile
            left += "gloo" in name.read_text()
    world = join_world(Layout(tensor=2), "cpu", timeout_seconds=60)
    whole = distribute_tensor(torch.ones(4, 4), world.submesh("tensor"), [Shard(0)])
    (whole @ whole).full_tensor()
    world.close()
    return left


def test_a_world_that_was_closed_keeps_no_threads():
    counts = [max(run(close_a_world, 2, init=False)) for _ in range(3)]
    assert max(counts) <= counts[0], counts


def meet_again() -> list[float]:
    sums = []
    for _ in range(2):
        world = join_world(Layout(replicate=2), "cpu", timeout_seconds=100)
        sums.append(world.sum(torch.ones(()), "replicate").item())
        world.close()
        time.sleep(0.3 * world.is_rank_zero)  # the other finds where rank 0 listened before
    return sums


def test_ranks_that_closed_their_world_meet_again():
    assert run(meet_again, 2, init=False) == [[2.0] * 2] * 2
