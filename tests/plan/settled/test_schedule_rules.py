"""What a pipeline's schedule asks of a plan."""

import pytest

from stepladder.plan import Plan, Schedule
from stepladder.plan.settled.schedule_rules import fills, whole_rounds
from stepladder.plan.settled.settle import broken_rules


def test_only_gpipe_runs_with_fewer_micro_batches_than_stages():
    assert fills(Schedule("gpipe"), 1, 4)
    assert not fills(Schedule("1f1b"), 3, 4) and fills(Schedule("1f1b"), 4, 4)


def test_interleaving_wants_whole_rounds():
    assert whole_rounds(Schedule("1f1b"), 5, 4)
    assert not whole_rounds(Schedule("interleaved", 2), 6, 4)


@pytest.mark.parametrize(
    ("batch", "remedy"),
    [
        ("micro=8 accumulate=1", "Use micro=2, or at most 1 stages."),
        ("micro=6 accumulate=2", "Use micro=3, or at most 2 stages."),
        ("micro=1 accumulate=2", "Use a batch of 4 or more, or at most 2 stages."),
    ],
)
def test_stages_that_stay_empty_are_filled_by_smaller_micro_batches_where_there_are_rows(
    batch, remedy
):
    (problem,) = broken_rules(Plan.parse(f"fp32 pipeline=4 {batch}"))
    assert str(problem).endswith(remedy)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("compile=on", "compiled blocks run theirs in one piece"),
        ("recompute=selective", "recompute=selective computes again once"),
        ("recompute=8GiB", "recompute=8GiB computes again once"),
        ("context=2", "context=2 gathers keys again once"),
        ("zero3 shard=2", "zero3 drops parameters between its halves"),
    ],
)
def test_a_split_backward_refuses_what_runs_once(words, problem):
    split = Plan.parse(f"bf16 pipeline=2 schedule=zero-bubble micro=1 accumulate=4 {words}")
    whole = Plan.parse(f"bf16 pipeline=2 schedule=1f1b micro=1 accumulate=4 {words}")
    assert [problem in str(found) for found in broken_rules(split)] == [True]
    assert broken_rules(whole) == []
