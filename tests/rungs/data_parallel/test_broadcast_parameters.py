"""Ranks begin alike, agree on what each counted for itself, and fill hollow modules in slices."""

import os

import pytest
import torch
from torch import nn
from torch.distributed.tensor import DTensor

from stepladder.errors import ModelError
from stepladder.model import build
from tests.ranks import run
from tests.rungs.rank_toys import feed, odd, start, whole

GPT = "gpt:layers=2,hidden=32,heads=2,vocab=64,sequence=16"


def on_meta():
    return build(GPT, device="meta")


def filled(plan):
    taken = start(plan, on_meta, seed=5)
    held = sum(
        (p.to_local() if isinstance(p, DTensor) else p).numel() for p in taken.module.parameters()
    )
    return whole(taken.module), held


@pytest.mark.parametrize("plan", ["fp32 ddp", "fp32 zero3"])
def test_a_module_without_values_is_filled_as_if_it_had_been_whole(plan):
    expected = dict(build(GPT, seed=5).named_parameters())
    total = sum(p.numel() for p in expected.values())
    for found, held in run(filled, 2, plan, init=False):
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], expected[name]) for name in expected)
        assert held == (total // 2 if "zero3" in plan else total)


def drawn_by_rank():
    torch.manual_seed(7 + int(os.environ["RANK"]))
    return nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 3))


def started_apart(plan):
    own = {name: p.detach().clone() for name, p in drawn_by_rank().named_parameters()}
    return own, whole(start(plan, drawn_by_rank).module)


@pytest.mark.parametrize("plan", ["fp32 ddp", "fp32 zero1", "fp32 zero3"])
def test_all_ranks_start_from_the_weights_of_rank_zero(plan):
    (first, found), (other, theirs) = run(started_apart, 2, plan, init=False)
    for name in first:
        assert not torch.equal(first[name], other[name]), "each rank drew weights of its own"
        assert torch.equal(found[name], first[name]) and torch.equal(theirs[name], first[name])


def test_a_foreign_module_without_values_is_refused():
    def nobody_knows():
        with torch.device("meta"):
            return odd()

    with pytest.raises(ModelError, match="is on the meta device, and how its first values are"):
        start("fp32", nobody_knows)


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.last = nn.BatchNorm1d(4), nn.Linear(4, 3)
        self.register_buffer("third", torch.full((3,), 1 / 3))

    def forward(self, x):
        return self.last(self.norm(x)) + self.third


def counted(plan):
    torch.manual_seed(0)
    taken = start(plan, Counting, micro=4)
    draw = torch.Generator().manual_seed(taken.world.data_index)
    feed(taken, [(torch.randn(12, 4, generator=draw), torch.zeros(12, dtype=torch.long))], 4)
    norm, used = taken.module.norm, []
    before = norm.running_mean.clone()
    norm.register_forward_hook(lambda part, *_: used.append(part.running_mean.clone()))
    loss = taken.evaluate([(torch.ones(2, 4), torch.zeros(2, dtype=torch.long))], rows="rank")
    return before, used[-1], norm.running_mean.clone(), taken.module.third.clone(), loss


@pytest.mark.parametrize("plan", ["fp32 ddp", "fp32 zero3"])
def test_running_statistics_are_averaged_before_they_are_used(plan):
    """Where each rank has its own; with batchnorm=sync they never differ."""
    found = run(counted, 3, f"{plan} batchnorm=local", init=False)
    before = [each[0] for each in found]
    assert not torch.equal(before[0], before[1])
    for own, used, after, third, loss in found:
        torch.testing.assert_close(used, torch.stack(before).mean(0))
        assert torch.equal(after, own), "a rank trains on with its own"
        assert torch.equal(third, torch.full((3,), 1 / 3)), "what all agree on stays to the bit"
        assert loss == found[0][-1]
