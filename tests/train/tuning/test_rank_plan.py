"""On several ranks `auto` copies the module where that fits, and shards it where it does not."""

import os
from unittest.mock import patch

import pytest
import torch
from torch import nn

from stepladder.plan import Optimizer, Plan
from stepladder.train import climb
from stepladder.train.tuning import planner_inputs, rank_plan
from stepladder.train.tuning.auto_plan import choose_plan
from stepladder.world import Place
from tests.ranks import run
from tests.soak import soak_after
from tests.train.tuning.described_once import described_once

TWO = Place(rank=0, num_ranks=2, local_rank=0, local_ranks=2, launched=True)
FOUR = Place(rank=0, num_ranks=4, local_rank=0, local_ranks=4, launched=True)


@pytest.fixture(scope="module", autouse=True)
def alike_modules_are_described_once():
    with described_once(rank_plan):
        yield


def stack():
    torch.manual_seed(0)
    blocks = [
        nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)) for _ in range(6)
    ]
    return nn.Sequential(*blocks, nn.Linear(256, 10))  # 3.2 M parameters: 48 MiB with AdamW


def batch(seed=0, rows=8):
    draws = torch.Generator().manual_seed(seed)
    inputs = torch.randn(rows, 256, generator=draws)
    return inputs, torch.randint(0, 10, (rows,), generator=draws)


def chosen(words, place=TWO, module=None, **known):
    return choose_plan(words, "cpu", place, model=module or stack(), sample=batch(), **known)


def test_a_module_that_fits_is_copied():
    choice = chosen("auto")
    assert choice.plan == Plan.parse("fp32 ddp")
    assert "each of 2 ranks holds a whole copy: forecast 0.0485 of" in choice.because


@pytest.mark.parametrize(
    ("limit", "zero", "said"),
    [  # ZeRO 1 gathers parameters through a buffer: of two small ranks it needs more than copies
        ("0.045GiB", 2, "; forecast 0.0396 of 0.045 GiB a rank"),  # as docs/rungs/compile.md shows
        ("0.038GiB", 3, "; forecast 0.0338 of 0.038 GiB a rank"),
    ],
)
def test_a_module_that_does_not_fit_is_sharded_as_far_as_it_takes(limit, zero, said):
    choice = chosen(f"auto memory={limit}")
    assert choice.plan.zero == zero and choice.plan.layout.shard == 2
    assert choice.plan.memory_bytes == Plan.parse(f"fp32 memory={limit}").memory_bytes
    assert "a whole copy on each of 2 ranks would not fit (forecast 0.0485 of" in choice.because
    assert said in choice.because


def test_what_fits_nowhere_is_left_to_copies_and_said():
    choice = chosen("auto memory=0.001GiB")
    assert choice.plan.zero == 0 and choice.plan.layout.replicate == -1
    assert "the planner has nothing to add: no plan fits on" in choice.because


def test_the_optimizer_that_the_run_will_have_is_planned_for():
    limit = "auto memory=0.045GiB"
    assert chosen(limit).plan.zero > 0
    assert chosen(limit, optimizer=Optimizer.parse("sgd lr=0.1")).plan.zero == 0


def test_a_foreign_module_is_not_cut():
    for place in (TWO, FOUR):
        layout = chosen("auto memory=0.038GiB", place).plan.layout
        assert layout.tensor == layout.pipeline == layout.context == 1


def test_without_a_batch_every_rank_holds_a_copy():
    choice = choose_plan("auto", "cpu", TWO, model=stack())
    assert choice.plan == Plan.parse("fp32 ddp")
    assert "no batch was given to plan for" in choice.because


def test_a_layout_that_is_written_stays():
    choice = chosen("auto zero3")
    assert choice.plan == Plan.parse("fp32 zero3") and "the layout was asked for" in choice.because


def learn(memories):
    """Train with what is chosen where each rank sees another amount of memory."""
    rank = Place.from_environment().rank
    with patch.object(planner_inputs, "device_memory_bytes", lambda device: memories[rank]):
        taken = climb(
            stack(), loss="cross_entropy", optimizer="sgd lr=0.1", plan="auto", sample=batch()
        )
    losses = [taken.step(batch(seed), rows="global").loss for seed in range(3)]
    return str(taken.plan), losses, taken.because


def plain_losses():
    module = stack()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    losses = []
    for seed in range(3):
        inputs, targets = batch(seed)
        loss = nn.functional.cross_entropy(module(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def test_ranks_train_with_the_plan_that_rank_zero_chose():
    little, much = 51 * 2**20, 2**40  # shards fit in half of it, and no whole copy
    (first, losses, because), (second, others, _) = run(learn, 2, (little, much), init=False)
    assert first == second and "zero" in first and losses == others
    assert "a whole copy on each of 2 ranks would not fit" in because
    assert losses == pytest.approx(plain_losses(), rel=1e-5)


def tried(plan, cache):
    how = {"loss": "cross_entropy", "optimizer": "sgd lr=0.1", "device": "cpu"}
    with patch.dict(os.environ, XDG_CACHE_HOME=cache):
        climbed = climb(stack(), plan=plan, sample=batch(), **how)
    losses = [climbed.step(batch(seed), rows="rank").loss for seed in range(2)]
    return str(climbed.plan), climbed.because, losses, climbed.events


@pytest.mark.parametrize(
    "words", soak_after(["auto compile=off tune=60", "auto zero1 compile=off tune=60"])
)
def test_ranks_with_whole_copies_try_plans_and_take_what_the_first_found(words, tmp_path):
    first, second = run(tried, 2, words, str(tmp_path))
    assert first[0] == second[0] and first[1] == second[1]
    assert "on one rank's rows, the fastest of 2 tried here" in first[1]
    assert [event.split(":")[1].strip() for event in first[3] if event.startswith("tuning:")] == [
        "fp32", "fp32 kernels=on",
    ]  # fmt: skip
    again = run(tried, 2, first[0], str(tmp_path))
    assert [one[2] for one in again] == [first[2], second[2]]


def test_ranks_that_cut_the_module_try_nothing(tmp_path):
    _, because, *_ = run(tried, 2, "auto zero2 compile=off tune=60", str(tmp_path))[0]
    assert "tried" not in because
