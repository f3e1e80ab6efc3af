"""Copies: what DDP is told, how passes add up, and copies of cut parameters."""

import pytest
import torch

from stepladder.plan import SettledPlan
from stepladder.rungs.data_parallel import distribute as chosen
from stepladder.rungs.data_parallel.ddp import replicate_by_blocks
from tests.ranks import run
from tests.rungs.rank_toys import feed, learn, odd, same, start, steady, tokens
from tests.train.toys import llama, ragged


def told(make, micro):
    copy = start("fp32 ddp", make, micro=micro).climbed.forward_backward.gradient_sync.module
    return copy.find_unused_parameters, copy.forward_sync_buffers, copy.static_graph


def test_a_known_model_uses_all_its_parameters_and_others_may_skip_some():
    assert run(told, 2, llama, 3, init=False) == [(False, False, False)] * 2
    assert run(told, 2, odd, None, init=False) == [(True, False, False)] * 2


def sorted_again():
    """Whether DDP still sorts its buckets in the first steps, and what was left in gradients."""
    taken = start("fp32 ddp", llama)
    copy = taken.climbed.forward_backward.gradient_sync.module
    left = [parameter.grad is not None for parameter in copy.module.parameters()]
    feed(taken, tokens(3))
    return any(left), getattr(copy, "_has_rebuilt_buckets", False)


def test_buckets_are_sorted_before_the_first_batch_and_never_after():
    """Else a resumed run's first batch rounds otherwise; and what DDP notes for it would grow."""
    assert run(sorted_again, 2, init=False) == [(False, False)] * 2


def exchanged(make, batches, micro):
    """How often gradients were reduced in each of the steps."""
    taken = start("fp32 ddp", make, micro=micro)
    reduced = []
    for batch in batches:
        with torch.profiler.profile() as seen:
            feed(taken, [batch], micro)
        sizes = [e for e in seen.events() if e.name == "c10d::allreduce_"]
        reduced.append(len(sizes))
    return reduced


def test_only_the_last_pass_exchanges_gradients():
    """Sums of loss, norm and counts are small; a pass more or less is a bucket more or less."""
    counts = [run(exchanged, 2, llama, ragged(3), micro, init=False)[0] for micro in (6, 3)]
    assert counts[0] == counts[1]


def by_blocks(optimizer):
    """The same module spread by the engine for cut parameters."""
    before, chosen.replicate = (
        chosen.replicate,
        lambda m, p, w: replicate_by_blocks(
            m, [(f"blocks.{i}", b) for i, b in enumerate(m.blocks)], SettledPlan(p, "cpu"), w
        ),
    )
    try:
        return learn("fp32 ddp", odd, optimizer)
    finally:
        chosen.replicate = before


@pytest.mark.parametrize("optimizer", ["sgd lr=0.5", "adamw lr=1e-2 wd=0.1 clip=0.5"])
def test_the_engine_for_cut_parameters_computes_the_same(optimizer):
    expected = learn("fp32", odd, optimizer)
    for found in run(by_blocks, 2, optimizer, init=False):
        same(found, expected)


def overflowing(plan):
    """A step that overflows on one rank only, then one that does not."""
    taken = start(plan, steady, nonfinite="skip")
    before = [p.detach().clone() for p in taken.climbed.module.parameters()]
    scale = taken.scale.scale.item()
    batch = tokens(1)[0]
    hook = taken.module.few.register_forward_hook(
        lambda m, i, out: out * (torch.inf if taken.world.data_index == 1 else 1.0)
    )
    world = taken.world
    mine = tuple(t[world.data_index * 3 : world.data_index * 3 + 3] for t in batch)
    first = taken.step(mine, rows="rank").read()
    hook.remove()
    kept = all(torch.equal(a, b) for a, b in zip(before, taken.climbed.module.parameters()))
    halved = taken.scale.scale.item() / scale
    second = taken.step(mine, rows="rank").read()
    return first.skipped, kept, halved, second.skipped, taken.scale.scale.item() / scale


@pytest.mark.parametrize("rung", ["ddp", "zero1", "zero2", "zero3"])
def test_all_ranks_agree_on_an_overflow_of_one(rung):
    found = run(overflowing, 2, f"fp16 {rung}", init=False)
    assert found[0] == found[1]
    assert found[0][:3] == (True, True, 0.5)
