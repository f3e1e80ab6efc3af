"""Which ranks hold one copy of a matrix together."""

import pytest
import torch

from stepladder.plan import Layout
from stepladder.train.optimizer.muon.matrix_shards import copy_numbers, stage_ranks
from stepladder.world import Place, World

LAYOUT = Layout(pipeline=2, replicate=2, shard=2)


def world(rank):
    return World(Place(rank, 8, rank, 8, launched=True), torch.device("cpu"), LAYOUT)


@pytest.mark.parametrize(("rank", "stage"), [(1, [0, 1, 2, 3]), (6, [4, 5, 6, 7])])
def test_a_stage_is_the_ranks_with_the_same_blocks(rank, stage):
    assert stage_ranks(world(rank)) == stage


@pytest.mark.parametrize(
    ("axes", "copies"),
    [((), (0, 1, 2, 3)), (("shard", "context"), (0, 0, 1, 1)), (("replicate", "shard"), (0,) * 4)],
)
def test_ranks_that_differ_along_the_sliced_axes_alone_hold_one_copy(axes, copies):
    assert copy_numbers(axes, [0, 1, 2, 3], world(0)) == copies
