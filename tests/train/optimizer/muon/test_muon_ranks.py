"""Muon on several ranks: what one device computes, saved and gone on with in any layout."""

from dataclasses import replace
from functools import cache

import pytest
import torch

from stepladder.plan import Optimizer, Plan
from stepladder.plan.batch import BatchSplit
from stepladder.planner import forecast_state
from stepladder.train.tuning.planner_inputs import facts_for
from tests.ranks import run
from tests.rungs.rank_toys import learn as learn_odd
from tests.rungs.rank_toys import odd, same
from tests.soak import soak_after

from .toys import MUON, NORMUON, apart, batch, begin, learn, make, whole

alone = cache(learn)
alone_odd = cache(learn_odd)
TWO = ["ddp", "zero1", "zero2", "zero3", "tensor=2", "pipeline=2", "context=2"]
FOUR = [
    "zero3 replicate=2 shard=2",
    "zero1 shard=2 tensor=2",
    "zero2 shard=2 pipeline=2",
    "zero3 shard=2 tensor=2",
    "zero3 shard=4",
]


def check(plan, ranks, optimizer=MUON, **how):
    """Every rank's losses and parameters are one device's; the owners' matrices come back."""
    expected = alone("fp32 micro=8", optimizer)
    found = run(learn, ranks, f"fp32 {plan} micro=2", optimizer, *how.values(), init=False)
    for losses, parts, _ in found:
        assert losses == pytest.approx(expected[0], rel=1e-5)
        assert apart(parts, expected[1]) < 1e-5
    assert set().union(*(parts for _, parts, _ in found)) == set(expected[1])
    return [owned for _, _, owned in found]


@pytest.mark.parametrize("plan", TWO)
def test_two_ranks_learn_what_one_does(plan):
    check(plan, 2)


@pytest.mark.parametrize("plan", soak_after(FOUR))
def test_four_ranks_learn_what_one_does(plan):
    check(plan, 4)


@pytest.mark.parametrize("plan", soak_after(["zero3", "zero1", "tensor=2", "pipeline=2"]))
def test_normuon_knows_all_rows_whoever_holds_them(plan):
    check(plan, 2, NORMUON)


@pytest.mark.parametrize(
    ("plan", "sharing", "both"),
    [
        ("zero3", "everyone", 14),
        *soak_after(
            [
                ("ddp", "one", 0),
                ("ddp", "each copy", 14),
                ("zero1", "everyone", 14),
                ("tensor=2", "everyone", 14),
                ("zero3", "", None),
            ],
            gate=2,
        ),
    ],
)
def test_whoever_computes_a_matrix(plan, sharing, both):
    """With no rates of its own, the machine's forecast says who; the numbers do not."""
    first, second = check(plan, 2, steps=3, name="llama", sharing=sharing)
    twice = {i for owned in first for i in owned} & {i for owned in second for i in owned}
    assert both is None or len(twice) == both


@pytest.mark.parametrize("plan", soak_after(["ddp", "zero1", "zero3"], gate=-1))
def test_parameters_that_only_some_ranks_or_passes_use(plan):
    expected = alone_odd("fp32", optimizer=MUON)
    for found in run(learn_odd, 2, f"fp32 {plan}", odd, MUON, init=False):
        same(found, expected)


@pytest.mark.parametrize("plan", ["zero1", *soak_after(["ddp", "zero3"], gate=0)])
def test_exact_ranks_give_the_same_bits(plan):
    words = "fp32 exact=ranks:4"
    expected = run(learn, 1, words, MUON, init=False)[0]
    for losses, parts, _ in run(learn, 2, f"{words} {plan}", MUON, init=False):
        assert losses == expected[0]
        assert all(torch.equal(parts[name], value) for name, value in expected[1].items())


def saved_run(plan, optimizer, folder, steps):
    """A run that saves after some of its steps and goes on; what it ends with."""
    taken = begin(plan, optimizer)
    for step in range(steps):
        taken.step(batch(step), rows="global").read()
    taken.save(folder)
    losses = [taken.step(batch(step), rows="global").loss for step in range(steps, 4)]
    return losses, whole(taken.module)


def resumed_run(plan, optimizer, folder, steps):
    taken = begin(plan, optimizer, noise=0.1)
    taken.load(folder)
    losses = [taken.step(batch(step), rows="global").loss for step in range(steps, 4)]
    return losses, whole(taken.module), taken.events


@pytest.mark.parametrize(
    ("plan", "optimizer"),
    [
        ("fp32 zero3 micro=2", NORMUON),
        *soak_after(
            [
                ("fp32 zero1 micro=2", MUON),
                ("fp32 ddp micro=2", MUON),
                ("bf16 zero2 micro=2", MUON),
                ("bf16-master zero3 micro=4", NORMUON),
                ("fp32 tensor=2 micro=2", NORMUON),
                ("fp32 pipeline=2 micro=2", NORMUON),
            ],
            gate=0,
        ),
    ],
)
def test_a_resumed_run_goes_on_to_the_last_bit(tmp_path, plan, optimizer):
    went_on = run(saved_run, 2, plan, optimizer, str(tmp_path), 2, init=False)
    again = run(resumed_run, 2, plan, optimizer, str(tmp_path), 2, init=False)
    for (losses, parts), (now, others, _) in zip(went_on, again):
        assert losses == now
        assert all(torch.equal(parts[name], others[name]) for name in parts)


@pytest.mark.parametrize(
    ("plan", "ranks"),
    [
        ("fp32 micro=8", 1),
        *soak_after(
            [
                ("fp32 ddp micro=2", 2),
                ("fp32 zero1 micro=2", 2),
                ("fp32 tensor=2 micro=2", 2),
                ("fp32 pipeline=2 micro=2", 2),
                ("fp32 zero3 shard=2 tensor=2 micro=2", 4),
            ],
            gate=2,
        ),
    ],
)
def test_another_layout_goes_on_from_slices(tmp_path, plan, ranks):
    losses, parts = run(saved_run, 2, "fp32 zero3 micro=2", NORMUON, str(tmp_path), 2, init=False)[
        0
    ]
    for now, others, _ in run(resumed_run, ranks, plan, NORMUON, str(tmp_path), 2, init=False):
        assert now == pytest.approx(losses, rel=1e-6)
        assert apart(others, parts) < 1e-5


MASTERS = [
    "bf16-master zero3",
    "bf16-master ddp",
    "bf16-master zero1",
    "bf16-master tensor=2 micro=8",
    "bf16-master pipeline=2 micro=2",
]


@pytest.mark.parametrize("plan", soak_after(MASTERS, gate=1))
def test_masters_learn_on_ranks_what_one_device_does(plan):
    """Ranks add up gradients in 16 bits, so steps differ by that rounding."""
    expected, parts = alone("bf16-master", MUON)[:2]
    for losses, mine, _ in run(learn, 2, plan, MUON, init=False):
        assert losses == pytest.approx(expected, rel=0.01)
        assert apart(mine, parts) < 0.02


def test_masters_begin_as_the_parameters_of_a_run_without(tmp_path):
    taken = begin("fp32")
    taken.step(batch(0)).read()
    taken.save(tmp_path)
    again = begin("bf16-master", noise=0.1)
    again.load(tmp_path)
    assert not any("of no use" in event for event in again.events)
    for name, p in again.module.named_parameters():
        state, there = again.optimizer.state[p], taken.module.get_parameter(name)
        assert torch.equal(state["master"], there) and torch.equal(p, there.bfloat16())
        for key, kept in taken.optimizer.state[there].items():
            assert torch.equal(state[key], kept), (name, key)


def test_momentum_of_another_optimizer_is_left_out(tmp_path):
    """Also that of a run whose rows were not divided, or whose groups chose other matrices."""
    taken = begin("fp32", MUON)
    taken.step(batch(0)).read()
    taken.save(tmp_path)
    for other in (
        "adamw",
        "sgd lr=0.1 momentum=0.9",
        NORMUON,
        f"{MUON} group=*.up.weight:by=adamw",
    ):
        again = begin("fp32", other)
        again.load(tmp_path)
        assert any("remembered is of no use to this one" in event for event in again.events), other
        again.step(batch(1)).read()
    once_more = begin("fp32", MUON)
    once_more.load(tmp_path)
    assert not any("of no use" in event for event in once_more.events)


def state_bytes(plan, optimizer):
    taken = begin(plan, optimizer)
    taken.step(batch(0), rows="global").read()
    kept = [tensor for state in taken.optimizer.state.values() for tensor in state.values()]
    return sum(tensor.nbytes for tensor in kept if tensor.dim())


@pytest.mark.parametrize("optimizer", [MUON, NORMUON])
@pytest.mark.parametrize(
    "plan", soak_after(["zero3 shard=4", "zero1 shard=4", "zero1 shard=2 tensor=2", "ddp"])
)
def test_four_ranks_keep_what_is_forecast(plan, optimizer):
    found = run(state_bytes, 4, f"fp32 {plan}", optimizer, init=False)
    words = replace(Plan.parse(f"fp32 {plan} micro=2"), optimizer=Optimizer.parse(optimizer))
    forecast = forecast_state(facts_for(make()), replace(words, batch=BatchSplit(8, 2)).settle(4))
    assert max(found) == pytest.approx(forecast[0].optimizer, rel=0.02)
