"""A plan is a value and is text: both its texts read back, and settling leaves nothing open."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepladder.errors import PlanError, PlanErrors
from stepladder.plan import BF16, BatchSplit, Layout, Optimizer, Plan, Recompute
from stepladder.plan.layout import REST

from . import strategies as some


@given(some.plans)
def test_a_plans_shorthand_reads_back(plan):
    assert Plan.parse(str(plan)) == plan


@given(some.plans)
def test_a_plans_toml_reads_back(plan):
    assert Plan.from_toml(plan.to_toml()) == plan


@given(some.raw_plans, st.integers(1, 64))
def test_a_settled_plan_is_closed_and_reads_back(plan, ranks):
    try:
        settled = plan.check().settle(ranks)
    except PlanError:
        return
    assert settled.layout.num_ranks == ranks
    assert REST not in settled.layout.shape
    batch = settled.batch
    assert batch.sequences == batch.micro * batch.micro_batches * settled.layout.data_ranks
    assert settled.settle(ranks) == settled
    assert Plan.parse(str(settled)) == settled


def test_a_plan_reads_as_people_write_it():
    plan = Plan.parse("bf16 zero3 shard=8 micro=2 batch=64 recompute=blocks compile=on")
    assert plan == Plan(
        precision=BF16,
        layout=Layout(shard=8),
        zero=3,
        batch=BatchSplit(64, 2),
        recompute=Recompute("blocks"),
        compile=True,
    )


def test_an_optimizer_stands_in_a_plan_in_quotes():
    plan = Plan.parse("fp32 optimizer='sgd lr=0.1'")
    assert plan.optimizer == Optimizer("sgd", lr=0.1)


def test_no_words_are_the_default_plan():
    assert Plan.parse("") == Plan() == Plan.from_toml("")


@pytest.mark.parametrize(
    ("text", "layout", "zero"),
    [
        ("ddp", Layout(replicate=REST), 0),
        ("zero1", Layout(shard=REST), 1),
        ("zero2 shard=4", Layout(shard=4), 2),
        ("fsdp", Layout(shard=REST), 3),
        ("hsdp shard=8", Layout(replicate=REST, shard=8), 3),
        ("hsdp replicate=2", Layout(replicate=2, shard=REST), 3),
        ("zero3 tensor=2", Layout(shard=REST, tensor=2), 3),
    ],
)
def test_a_data_word_opens_the_axis_it_is_about(text, layout, zero):
    plan = Plan.parse(text)
    assert (plan.layout, plan.zero) == (layout, zero)


def test_a_plan_for_another_number_of_ranks_says_how_many_it_needs():
    with pytest.raises(PlanError) as caught:
        Plan.parse("zero3 shard=4 tensor=2").settle(6)
    assert str(caught.value) == (
        "layout: is for 8 ranks (shard=4 tensor=2), and there are 6 ranks. "
        "Use 8, or leave one axis open with -1."
    )


def test_slicing_along_an_axis_of_one_is_refused():
    with pytest.raises(PlanError) as caught:
        Plan.parse("zero2 shard=1 replicate=4")
    assert str(caught.value) == (
        "zero: zero2 slices along shard, and shard is 1 in replicate=4. "
        "Write shard=-1 for all ranks, or ddp to keep whole copies."
    )


def test_slicing_that_settles_to_an_axis_of_one_is_refused_too():
    with pytest.raises(PlanError, match="zero1 slices along shard, and shard is 1 in replicate=2"):
        Plan.parse("zero1 replicate=2").settle(2)


@pytest.mark.parametrize(
    ("text", "ranks", "layout"),
    [("zero3", 1, Layout()), ("zero3 tensor=2", 2, Layout(tensor=2))],
)
def test_slicing_with_nobody_to_share_with_is_legal_and_reads_back(text, ranks, layout):
    settled = Plan.parse(text).settle(ranks)
    assert settled.layout == layout
    assert Plan.parse(str(settled)) == settled


def test_shards_of_nothing_are_refused():
    with pytest.raises(PlanError) as caught:
        Plan.parse("shard=4")
    assert str(caught.value) == (
        "layout.shard: shard=4 without a word for what is sliced. Add zero1, zero2 or zero3."
    )


def test_all_problems_are_reported_at_once():
    with pytest.raises(PlanErrors) as caught:
        Plan.parse("bf-16 shard=x recompute=all zero4")
    assert str(caught.value).splitlines() == [
        "plan: 'bf-16' is not a word of a plan. Did you mean 'bf16'?",
        "layout.shard: 'x' is not a whole number of 1 or more. Write a number.",
        "recompute: 'all' is not a way to recompute. "
        "Choose none, blocks, selective, every:2 or a budget such as 8GiB.",
        "plan: 'zero4' is not a word of a plan. Did you mean 'zero3'?",
    ]
    assert len(caught.value.problems) == 4


@pytest.mark.parametrize(
    ("text", "ranks", "message"),
    [
        (
            "fp32 ddp exact=ranks",
            6,
            "exact: 6 data ranks cannot share 8 slices of a batch evenly. Use 4 ranks.",
        ),
        (
            "fp32 zero3 exact=ranks",
            16,
            "exact: 16 data ranks cannot share 8 slices of a batch evenly. "
            "Use 8 ranks, or exact=ranks:16.",
        ),
        (
            "fp32 exact=ranks batch=12",
            1,
            "batch.sequences: 12 rows do not divide into 8 equal slices. Nearest that do: 8 or 16.",
        ),
        (
            "fp32 exact=ranks batch=16 micro=4",
            1,
            "batch.micro: a slice is one micro-batch, and batch=16 in 8 slices has slices of 2, "
            "not 4. Use micro=2 or leave it out.",
        ),
    ],
)
def test_slices_that_ranks_or_a_batch_cannot_share_are_refused(text, ranks, message):
    with pytest.raises(PlanError) as caught:
        Plan.parse(text).settle(ranks)
    assert str(caught.value) == message


def test_slices_are_the_micro_batches_of_a_settled_plan():
    for ranks in (1, 2, 8):
        settled = Plan.parse("fp32 zero3 exact=ranks batch=32").settle(ranks)
        assert settled.batch == BatchSplit(32, 4, 8 // ranks)
    assert Plan.parse("fp32 exact=ranks micro=3").settle(1).batch == BatchSplit(24, 3, 8)
