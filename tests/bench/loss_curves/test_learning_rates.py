"""Learning rates of a larger batch: the same samples, the rates of each rule, a row that breaks."""

import math

import pytest
import torch

from stepladder.bench import make_workload
from stepladder.bench.loss_curves.learning_rates import (
    cut,
    learning_rate_cases,
    measure_learning_rates,
)
from stepladder.errors import PlanError

MODEL = "gpt:layers=1,hidden=16,heads=2,vocab=256"


def workload(steps=2, rows=4):
    return make_workload(MODEL, batch=rows, sequence=16, num_batches=steps, device="cpu")


def test_each_rule_is_tried_without_and_with_warm_up_at_its_rate():
    base, *others = learning_rate_cases(["sgd lr=0.1"], 4, 16, 20)
    assert (base.batch, base.lr, base.warmup) == (4, 0.1, 0)
    assert [(case.rule, case.warmup) for case in others] == [
        ("none", 0), ("none", 4), ("linear", 0), ("linear", 4), ("sqrt", 0), ("sqrt", 4),
    ]  # fmt: skip
    assert {case.rule: case.lr for case in others} == pytest.approx(
        {"none": 0.1, "linear": 1.6, "sqrt": 0.4}
    )
    assert {case.batch for case in others} == {64}


def test_small_batches_hold_the_samples_of_the_large_in_their_order():
    batches = workload().batches
    small = list(cut(batches, 2))
    assert [batch.num_rows for batch in small] == [2] * 4
    whole = torch.cat([batch.inputs for batch in batches])
    assert torch.equal(torch.cat([batch.inputs for batch in small]), whole)


def test_rows_train_at_their_rates_and_are_compared_by_the_last_tenth():
    found = list(measure_learning_rates(workload(), learning_rate_cases(["sgd lr=0.01"], 1, 4, 2)))
    base, none, warm, linear = found[:4]
    assert base.samples == [*range(8)] and none.samples == [0, 4]
    assert none.losses[0] == warm.losses[0] == linear.losses[0]
    # Two steps: at the plain rate and at four times the rate, and a warm-up of one step is none.
    assert none.losses[1] == warm.losses[1] > linear.losses[1]
    assert base.final == base.losses[-1]


def test_a_seed_is_one_of_the_first_weights_on_the_same_samples():
    cases = learning_rate_cases(["sgd lr=0.01"], 1, 4, 1)[1:2]
    first, second = measure_learning_rates(workload(steps=1), cases, seeds=2)
    assert (first.seed, second.seed) == (0, 1) and first.losses != second.losses


def test_a_rate_at_which_training_breaks_off_is_a_row_that_says_so():
    cases = learning_rate_cases(["sgd lr=1e30"], 1, 2, 4)[:1]
    (row,) = measure_learning_rates(workload(steps=4, rows=2), cases)
    assert row.final is None and row.problem == f"diverged in step {len(row.losses)}"
    assert len(row.losses) < 8 and all(map(math.isfinite, row.losses))


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(PlanError, match="1 times the base batch of 4 is no larger batch"):
        learning_rate_cases(["adamw lr=1e-3"], 4, 1, 10)
    images = make_workload("mlp-tiny", batch=4, sequence=16, device="cpu")
    with pytest.raises(PlanError, match="mlp-tiny would learn random images"):
        next(measure_learning_rates(images, learning_rate_cases(["adamw lr=1e-3"], 2, 2, 1)))
