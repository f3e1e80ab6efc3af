"""The batch identity holds, and the ranks' shares are the global batch, no more and no less."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepladder.errors import PlanError
from stepladder.plan import BatchSplit, Plan
from stepladder.plan.batch import rank_positions, uneven_rank_rows
from stepladder.plan.settled.settle import settle

few = st.integers(1, 12)


@given(micro=few, micro_batches=few, ways=few)
def test_any_two_of_the_three_numbers_give_the_third(micro, micro_batches, ways):
    full = BatchSplit(micro * micro_batches * ways, micro, micro_batches)
    for part in (
        BatchSplit(None, micro, micro_batches),
        BatchSplit(full.sequences, micro, None),
        BatchSplit(full.sequences, None, micro_batches),
        full,
    ):
        assert part.settle(ways) == full


def test_an_empty_batch_is_one_sequence_a_rank():
    assert BatchSplit().settle(8) == BatchSplit(8, 1, 1)


def test_a_batch_alone_is_taken_in_one_pass():
    assert BatchSplit(64).settle(8) == BatchSplit(64, 8, 1)


@given(step=st.integers(0, 100), micro=few, micro_batches=few, ways=few)
def test_the_shares_of_all_data_ranks_partition_the_global_batch(step, micro, micro_batches, ways):
    batch = BatchSplit(micro * micro_batches * ways, micro, micro_batches)
    shares = [rank_positions(step, batch, index, ways) for index in range(ways)]
    assert all([len(part) for part in parts] == [micro] * micro_batches for parts in shares)
    read = sorted(position for parts in shares for part in parts for position in part)
    first = step * batch.sequences
    assert read == list(range(first, first + batch.sequences))


@given(micro=few, micro_batches=few, ways=few)
def test_the_nth_micro_batches_of_all_ranks_are_one_chunk_of_the_batch(micro, micro_batches, ways):
    batch = BatchSplit(micro * micro_batches * ways, micro, micro_batches)
    shares = [rank_positions(0, batch, index, ways) for index in range(ways)]
    for number in range(micro_batches):
        stretch = sorted(position for parts in shares for position in parts[number])
        assert stretch == list(range(number * micro * ways, (number + 1) * micro * ways))


def test_a_batch_that_does_not_divide_names_the_nearest_sizes():
    with pytest.raises(PlanError) as caught:
        BatchSplit(100, 4).settle(8)
    assert str(caught.value) == (
        "batch.sequences: 100 does not divide by 32 "
        "(micro-batches of 4 x 8 data ranks). Nearest that do: 96 or 128."
    )


def test_a_batch_smaller_than_the_ranks_micro_batches_names_the_least():
    with pytest.raises(PlanError, match=r"3 does not divide .* Nearest that do: 32\."):
        BatchSplit(3, 4).settle(8)


def test_a_batch_without_micro_that_does_not_divide_names_the_nearest_sizes():
    with pytest.raises(PlanError) as caught:
        BatchSplit(10, None, 2).settle(2)
    assert str(caught.value) == (
        "batch.sequences: 10 does not divide by 4 (micro-batches x data ranks). "
        "Nearest that do: 8 or 12."
    )
    with pytest.raises(PlanError, match=re.escape("Nearest that do: 4.")):
        BatchSplit(3, None, 2).settle(2)


@given(sequences=st.integers(1, 500), micro=few, ways=few)
def test_the_nearest_sizes_named_do_divide(sequences, micro, ways):
    try:
        BatchSplit(sequences, micro).settle(ways)
    except PlanError as refused:
        for size in re.findall(r"\d+", refused.remedy):
            assert BatchSplit(int(size), micro).settle(ways).sequences == int(size)


def test_micro_batches_that_contradict_the_batch_name_the_right_number():
    with pytest.raises(PlanError) as caught:
        BatchSplit(64, 2, 3).settle(4)
    assert str(caught.value) == (
        "batch.accumulate: 3 micro-batches of 2 x 4 data ranks make 24, not batch=64. "
        "Use accumulate=8 or leave it out."
    )


def test_numbers_under_one_are_all_reported():
    with pytest.raises(PlanError) as caught:
        Plan(batch=BatchSplit(0, -1, 0)).check()
    assert str(caught.value).splitlines() == [
        "batch.sequences: 0 is not a number of sequences. Use 1 or more.",
        "batch.micro: -1 is not a number of sequences. Use 1 or more.",
        "batch.accumulate: 0 is not a number of sequences. Use 1 or more.",
    ]


@given(size=st.integers(1, 200), ways=few)
def test_uneven_shares_are_the_batch_and_differ_by_one_row_at_most(size, ways):
    shares = [uneven_rank_rows(size, index, ways) for index in range(ways)]
    assert [row for rows in shares for row in rows] == list(range(size))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@given(micro=few, micro_batches=few, ways=few)
def test_a_step_has_as_many_rows_as_its_micro_batches_or_fewer(micro, micro_batches, ways):
    batch = BatchSplit(None, micro, micro_batches)
    most = micro * micro_batches * ways
    for rows in (1, most - 1, most):
        batch.check_rows(rows, ways)
        BatchSplit(None, None, micro_batches).check_rows(rows + most, ways)
        BatchSplit(None, micro, None).check_rows(rows + most, ways)
    with pytest.raises(PlanError, match=f"make {most}, and the batch has {most + 1} rows"):
        batch.check_rows(most + 1, ways)


def test_three_numbers_that_disagree_are_refused_before_a_batch_is_there():
    plan = Plan.parse("fp32 ddp batch=8 micro=2 accumulate=3")
    with pytest.raises(PlanError) as caught:
        settle(plan, 1, open_batch=True)
    assert str(caught.value) == (
        "batch.accumulate: 3 micro-batches of 2 x 1 data ranks make 6, not batch=8. "
        "Use accumulate=4 or leave it out."
    )
    assert settle(Plan.parse("fp32 ddp batch=6 micro=2 accumulate=3"), 1, open_batch=True)
    uneven = Plan.parse("fp32 ddp batch=5 micro=2 accumulate=2")
    assert settle(uneven, 2, open_batch=True).data_ranks == 2
