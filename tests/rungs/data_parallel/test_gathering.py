"""Blocks gathered ahead and blocks that stay gathered: the same numbers, when, and in what memory.

The order of gathers is read from torch's own profile, against marks that the blocks themselves set.
"""

from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import profile, record_function

from stepladder.hardware import Cluster
from stepladder.measure import measure_memory
from stepladder.model import build
from stepladder.plan import Plan
from stepladder.planner import forecast
from stepladder.train import climb, facts_for
from tests.ranks import run
from tests.rungs.rank_toys import Block, Odd, feed, learn, same, start, steady, tokens

BLOCKS = 5


def deep(spread: float = 0.0) -> Odd:
    """Five blocks, whose weights may be set to any numbers; every parameter is used."""
    module = steady()
    module.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
    draw = torch.Generator().manual_seed(5)
    for parameter in module.parameters() if spread else ():
        nn.init.normal_(parameter, std=spread, generator=draw)
    return module


PLANS = ("fp32 zero3 prefetch=0", "fp32 zero3 prefetch=3", "fp32 zero3 prefetch=2 gathered=4")
MORE = ("fp32 zero3 gathered=9", "fp32 zero2 prefetch=0", "fp32 zero2 prefetch=3")


def learn_each(plans, *how):
    return [learn(plan, *how) for plan in plans]


@pytest.mark.parametrize(
    ("plans", "spread", "optimizer"),
    [
        (PLANS, 0.5, "sgd lr=0.1"),
        pytest.param(PLANS, 0.0, "adamw lr=1e-2", marks=pytest.mark.soak),
        pytest.param(MORE, 0.5, "adamw lr=1e-2", marks=pytest.mark.soak),
        pytest.param(MORE, 0.0, "sgd lr=0.1", marks=pytest.mark.soak),
    ],
)
def test_however_blocks_are_gathered_the_numbers_are_one_rank_s(plans, spread, optimizer):
    make = partial(deep, spread)
    expected = learn("fp32", make, optimizer, 2)
    for found in run(learn_each, 2, plans, make, optimizer, 2, init=False):
        for each in found:
            same(each, expected)


def wide() -> nn.Module:
    """Five blocks, much larger than what they compute."""
    torch.manual_seed(0)
    return build(f"gpt:layers={BLOCKS},hidden=64,heads=2,vocab=64", sequence=8)


def wide_block_bytes() -> int:
    return 4 * sum(parameter.numel() for parameter in wide().blocks[0].parameters())


def ids():
    draw = torch.Generator().manual_seed(0)
    return tuple(torch.randint(0, 64, (2, 8), generator=draw) for _ in range(2))


def gathers_seen(plan):
    """For each block, how many gathers had begun by its forward, and by its backward after it."""
    taken = start(plan, deep, micro=None)
    for index, block in enumerate(taken.module.blocks):
        # FSDP2's own hooks were there before these.
        block.register_forward_pre_hook(lambda *_, index=index: mark(f"forward {index}"))
        block.register_forward_hook(partial(mark_backward, index))
    feed(taken, tokens(1))
    with profile() as seen:
        feed(taken, tokens(1))
    events = sorted(seen.events(), key=lambda event: event.time_range.start)
    counts, gathered = {}, 0
    for event in events:
        gathered += event.name.split(" ")[0] == "FSDP::all_gather"
        if event.name.startswith(("forward ", "backward ")):
            counts.setdefault(event.name, gathered)
    return [
        [counts[f"{way} {index}"] for index in range(BLOCKS)] for way in ("forward", "backward")
    ]


def mark_backward(index, block, given, out):
    out.register_hook(lambda _: mark(f"backward {index}"))


def mark(name: str) -> None:
    with record_function(name):
        pass


@pytest.mark.parametrize(
    ("words", "ahead", "kept"),
    [("prefetch=0", 0, 1), ("", 1, 1), ("prefetch=3", 3, 1), ("prefetch=0 gathered=3", 0, 3)],
)
def test_so_many_blocks_are_gathered_before_a_block_begins(words, ahead, kept):
    (forward, backward), _ = run(gathers_seen, 2, f"fp32 zero3 {words}", init=False)
    around = 1  # what lies around the blocks is gathered first, and once
    assert forward == [around + min(index + 1 + ahead, BLOCKS) for index in range(BLOCKS)]
    dropped = BLOCKS - kept  # blocks 0 to dropped - 1 come again, from the last of them down
    came = [max(dropped - max(index - ahead, 0), 0) for index in range(BLOCKS)]
    assert backward == [around + BLOCKS + came[index] for index in range(BLOCKS)]


OFTEN, MOST_STEPS = 4, 24


def peaks(plans):
    """The bytes of this rank at the peak of a step under each plan.

    The least of several steps, once every rank has seen it often: gloo's thread may let go of a
    buffer after its collective is over.
    """
    found = []
    for plan in plans:
        run = climb(wide(), loss="cross_entropy", optimizer="sgd lr=0.1", plan=plan, device="cpu")
        step = partial(feed, run, [ids()], 1)
        step()
        state, seen, settled = (run.module, run.optimizer, run.world.device), [], torch.zeros(())
        while not settled and len(seen) < MOST_STEPS:
            seen.append(measure_memory(step, *state).peak_bytes)
            settled = torch.tensor(float(seen.count(min(seen)) >= OFTEN))
            dist.all_reduce(settled, dist.ReduceOp.MIN)
        found.append(min(seen))
    return found


def grown(plans):
    """By how many blocks the peak of each plan is above the first one's, measured and forecast."""
    measured, _ = run(peaks, 2, plans, init=False)
    facts, pair = facts_for(wide(), ids()), Cluster.parse("2 x Xeon-8480")
    told = [forecast(facts, Plan.parse(plan), pair).memory.peak_bytes for plan in plans]
    return [[(size - each[0]) / wide_block_bytes() for size in each] for each in (measured, told)]


@pytest.mark.soak
def test_a_block_gathered_ahead_is_a_block_of_memory_as_forecast():
    plans = [f"fp32 zero3 shard=2 micro=1 batch=2 prefetch={ahead}" for ahead in (1, 3, 0)]
    measured, told = grown(plans)
    assert measured[:2] == told[:2] == [0, 2]
    assert told[2] == -1 <= measured[2] < 0  # beside one block at work no buffer waits for another


@pytest.mark.soak
def test_blocks_that_stay_gathered_are_memory_as_forecast():
    plans = [f"fp32 zero3 shard=2 micro=1 batch=2 gathered={most}" for most in (2, 4, 99)]
    measured, told = grown(plans)
    assert measured == told == [0, 2, BLOCKS - 2]
