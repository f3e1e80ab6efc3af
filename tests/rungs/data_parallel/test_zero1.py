"""ZeRO 1: slices of whole copies, sent in few collectives, however parameters are stored."""

import pytest
import torch
from torch import nn
from torch.profiler import profile

from stepladder.rungs.data_parallel.zero1 import buckets, slice_size
from tests.ranks import run
from tests.rungs.rank_toys import feed, start, steady, tokens, whole


class Conv(nn.Module):
    """Its weights are stored channels last."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.last = nn.Conv2d(3, 5, 3), nn.Linear(5, 4)
        self.to(memory_format=torch.channels_last)

    def forward(self, x):
        return self.last(torch.tanh(self.conv(x)).mean((2, 3)))


def images(plan):
    torch.manual_seed(0)
    taken = start(plan, Conv, "momentum lr=0.5", micro=4)
    draw = torch.Generator().manual_seed(1)
    batches = [
        (torch.randn(8, 3, 6, 6, generator=draw), torch.randint(0, 4, (8,), generator=draw))
        for _ in range(3)
    ]
    losses = feed(taken, batches, 4)
    assert taken.module.conv.weight.is_contiguous(memory_format=torch.channels_last)
    return losses[0], whole(taken.module)


@pytest.mark.parametrize("plan", ["fp32 zero1", "fp32 zero1 offload=optimizer"])
def test_parameters_that_are_not_stored_in_a_row(plan):
    losses, parameters = images("fp32")
    for found, theirs in run(images, 2, plan, init=False):
        assert found == pytest.approx(losses, rel=1e-5)
        for name, value in parameters.items():
            torch.testing.assert_close(theirs[name], value, rtol=1e-5, atol=1e-6)


def collectives(_):
    taken = start("fp32 zero1", steady)
    feed(taken, tokens(1))
    with profile() as seen:
        taken.climbed.publish()
    return sum(e.count for e in seen.key_averages() if e.key == "c10d::_allgather_base_")


def test_all_slices_travel_together():
    assert run(collectives, 2, None, init=False) == [1, 1]


def test_buckets_are_filled_to_about_their_size():
    taken = start("fp32", steady)
    shards = taken.climbed.shards
    filled = list(buckets(shards, size_bytes=300))
    assert [shard for bucket in filled for shard in bucket] == list(shards)
    assert 1 < len(filled) < len(shards)


def test_a_slice_is_as_large_as_the_first():
    assert [slice_size(n, 4) for n in (8, 9, 3, 1)] == [2, 3, 1, 1]
