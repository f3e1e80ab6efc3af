"""A plan on another number of ranks: legal, of exactly those ranks, and of the same mathematics."""

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from stepladder.errors import PlanError
from stepladder.plan import PRECISIONS, BatchSplit, Layout, Optimizer, Plan, Recompute, Schedule
from stepladder.plan.layout import REST
from stepladder.plan.options import Compress, Exact
from stepladder.plan.refit import refit, spread
from stepladder.plan.settled.settle import broken_rules

TENSOR = "bf16 zero3 shard=2 tensor=4 batch=64 micro=8"


@pytest.mark.parametrize(
    ("asked", "ranks", "layout", "batch"),
    [
        (TENSOR, 4, Layout(shard=1, tensor=4), BatchSplit(64, 8)),
        (TENSOR, 12, Layout(shard=3, tensor=4), BatchSplit(64, 8)),
        (TENSOR, 6, Layout(shard=3, tensor=2), BatchSplit(64, 8)),
        (TENSOR, 3, Layout(shard=3), BatchSplit(64, 8)),
        (TENSOR, 1, Layout(), BatchSplit(64, 8)),
        ("ddp replicate=4 batch=64 micro=16", 3, Layout(replicate=3), BatchSplit(64, 16)),
        ("ddp replicate=4 batch=64 micro=16", 8, Layout(replicate=8), BatchSplit(64, 8)),
        ("zero3 shard=2 replicate=2 batch=8", 6, Layout(replicate=3, shard=2), BatchSplit(8)),
        ("zero3 shard=2 replicate=2 batch=8", 3, Layout(shard=3), BatchSplit(8)),
        ("zero1 shard=4 batch=8 accumulate=2", 2, Layout(shard=2), BatchSplit(8)),
        ("ddp pipeline=4 replicate=1 batch=16 micro=4", 2, Layout(pipeline=2), BatchSplit(16, 4)),
        ("ddp pipeline=4 replicate=1 batch=16 micro=4", 8, Layout(4, 2), BatchSplit(16, 2)),
        ("tensor=2 context=2", 2, Layout(tensor=2), BatchSplit()),
        ("tensor=2 context=2", 6, Layout(replicate=3, tensor=2), BatchSplit()),
    ],
)
def test_axes_that_cut_the_model_stay_where_the_ranks_divide_and_fall_to_divisors_elsewhere(
    asked, ranks, layout, batch
):
    fitted = refit(Plan.parse(asked), ranks).plan
    assert (fitted.layout, fitted.batch) == (layout, batch)


def test_a_plan_that_fits_stays_as_it_is_and_nothing_is_said():
    plan = Plan.parse("bf16 zero3 batch=12")
    assert refit(plan, 3) == (found := refit(plan, 6)) and found.plan is plan and found.said == ""


def test_what_changed_is_one_sentence_with_its_numbers():
    assert refit(Plan.parse(TENSOR), 6).said == (
        "plan refitted to 6 ranks: shard 2 to 3, tensor 4 to 2, shares that differ by a row; "
        "the global batch stays 64"
    )
    squeezed = Plan.parse("fp32 ddp replicate=2 compress=powersgd:4 batch=8 micro=4 accumulate=1")
    assert refit(squeezed, 1).said == (
        "plan refitted to 1 rank: replicate 2 to 1, accumulate 1 to open, powersgd:4 left out; "
        "the global batch stays 8"
    )
    piped = Plan.parse("pipeline=2 schedule=interleaved:2 batch=8 micro=2")
    assert "interleaved:2 left out" in refit(piped, 1).said
    assert refit(Plan.parse("kernels=on"), 2).plan.kernels
    assert "recorded graphs left out" in refit(Plan.parse("zero2 graphs=on"), 2).said


def test_what_counts_gathered_blocks_goes_with_the_slices_and_comes_back():
    asked = Plan.parse("fp32 zero3 prefetch=2 gathered=4 batch=8")
    alone = refit(asked, 1)
    assert (alone.plan.prefetch, alone.plan.gathered) == (None, None)
    assert "prefetch=2 left out, gathered=4 left out" in alone.said
    again = refit(asked, 4)
    assert (again.plan.prefetch, again.plan.gathered) == (2, 4) and not again.said


def test_a_schedule_that_cannot_take_its_turns_makes_room_for_a_plain_one():
    plan = Plan.parse("pipeline=4 schedule=interleaved:2 replicate=1 batch=6 micro=1")
    fitted = refit(plan, 2).plan
    assert (fitted.layout.pipeline, fitted.schedule.kind) == (2, "interleaved")
    odd = replace(plan, batch=BatchSplit(3, 1))
    assert refit(odd, 2).plan.schedule.kind == "1f1b"


def test_more_ranks_than_rows_are_refused_with_the_numbers():
    with pytest.raises(PlanError) as refused:
        refit(Plan.parse("ddp replicate=2 batch=4"), 6)
    assert str(refused.value) == (
        "ranks: no layout of 6 keeps the global batch of 4 and the rest of "
        "'fp32 replicate=2 batch=4'. "
        "Use a batch with a row for every rank, or another number of ranks."
    )


def usually(common, *rare):
    """Mostly one value: of plans with every option set, one in twenty breaks no rule."""
    return st.sampled_from([common] * 2 * len(rare) + list(rare))


small = st.integers(1, 8)
ways = usually(1, 2, 3, 4, 8)
plans = st.builds(
    Plan,
    precision=st.sampled_from(list(PRECISIONS.values())),
    keep=usually((), ("norm", "head.bias")),
    zero=st.integers(0, 3),
    recompute=usually(Recompute(), Recompute("blocks"), Recompute("every", every=2)),
    offload=usually((), ("optimizer",), ("parameters",), ("optimizer", "activations")),
    compress=usually(Compress(), Compress("bf16"), Compress("powersgd", rank=4)),
    schedule=st.sampled_from(
        [
            Schedule("1f1b"),
            Schedule("gpipe"),
            Schedule("zero-bubble", 2),
            Schedule("interleaved", 2),
        ]
    ),
    compile=usually(False, True, "blocks", "whole"),
    kernels=usually(False, True, ("head",)),
    graphs=usually(False, True),
    attention=usually("auto", "flash", "plain"),
    batchnorm=usually("sync", "local"),
    exact=usually(Exact(), Exact(1), Exact(8), Exact(32)),
    memory_bytes=usually(None, 2**34),
    optimizer=st.sampled_from(
        [Optimizer("sgd", lr=0.1), Optimizer("adamw", clip=1.0), Optimizer("adafactor")]
    ),
)


@settings(max_examples=100, deadline=None)
@given(plans, st.builds(Layout, ways, ways, ways, ways, ways), small, small, st.integers(1, 64))
def test_any_legal_plan_becomes_a_legal_plan_of_exactly_the_ranks(
    plan, layout, micro, micro_batches, ranks
):
    batch = BatchSplit(None, micro, None if plan.exact.slices else micro_batches)
    plan = replace(plan, layout=layout, batch=batch)
    assume(not plan.problems())
    plan = plan.settle(layout.num_ranks)
    assume(not broken_rules(plan))
    try:
        found = refit(plan, ranks)
    except PlanError:
        few_rows = plan.batch.sequences < ranks
        uneven = plan.exact.slices and plan.exact.slices % ranks
        whole = plan.optimizer.name == "adafactor" or plan.precision.masters
        assert few_rows or uneven or whole
        return
    fitted = found.plan
    assert fitted.check() is fitted and broken_rules(fitted) == []
    assert fitted.layout.num_ranks == ranks
    assert fitted.batch.sequences == plan.batch.sequences
    if fitted.batch.sequences % fitted.layout.data_ranks == 0:
        fitted.settle(ranks)
    assert (fitted.batch.micro or 0) <= plan.batch.micro
    for axis in ("tensor", "context", "pipeline"):
        assert getattr(plan.layout, axis) % getattr(fitted.layout, axis) == 0
    for name in ("precision", "optimizer", "zero", "recompute", "offload", "compile", "keep"):
        assert getattr(fitted, name) == getattr(plan, name)
    assert bool(found.said) == (fitted != plan)
    assert refit(fitted, ranks).plan == fitted


def test_an_exact_plan_keeps_its_slices_on_the_ranks_that_can_share_them():
    plan = Plan.parse("fp32 zero3 shard=8 exact=ranks batch=32").settle(8)
    fitted = refit(plan, 4).plan.settle(4)
    assert fitted.batch == BatchSplit(32, 4, 2) and fitted.exact == plan.exact
    with pytest.raises(PlanError) as refused:
        refit(plan, 6)
    assert str(refused.value) == (
        "exact: 6 data ranks cannot share 8 slices of a batch evenly. Use 4 ranks."
    )


@given(st.sampled_from(["ddp", "zero1", "zero3"]), st.integers(1, 12))
def test_going_and_coming_back_is_the_plan_that_was_asked_for(word, ranks):
    plan = Plan.parse(f"fp32 {word} batch=24 micro=2")
    assert refit(plan, ranks).plan.optimizer == Optimizer()
    assert refit(plan, 4).plan == plan


def test_a_plan_without_axes_is_spread_and_one_with_axes_is_kept():
    assert spread(Plan.parse("bf16"), 2).layout == Layout(replicate=REST)
    for plan in (Plan.parse("zero3"), Plan.parse("tensor=2"), Plan.parse("ddp")):
        assert spread(plan, 2) == plan
    assert spread(Plan(), 1) == Plan()
