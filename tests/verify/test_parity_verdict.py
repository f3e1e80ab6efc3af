"""What counts as the same: every number can fail it, and so can one that is none."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from stepladder.plan import Optimizer, Plan
from stepladder.record import Memory
from stepladder.verify import Sameness
from stepladder.verify.parity_verdict import Learned, Plain, judge, largest, narrowest, relative

PLAIN = Plain((2.0, 1.0), (3.0, 3.0), Path("w"), frozenset({"a", "b"}), moved=2.0)
GOOD = Learned((2.0, 1.0), (3.0, 3.0), {"a": 0.0, "b": 0.0}, Memory())
BLANK = Sameness("fp32 ddp", "sgd", 2)


def judged(*ranks, words="fp32", optimizer="sgd lr=1"):
    plan = replace(Plan.parse(words), optimizer=Optimizer.parse(optimizer))
    return judge(BLANK, plan, PLAIN, ranks)


def test_runs_that_agree_are_the_same():
    assert judged(GOOD, GOOD).verdict == "same"


@pytest.mark.parametrize(
    "change",
    [
        {"losses": (2.0, 1.0001)},
        {"losses": (math.nan, 1.0)},
        {"norms": (3.0, 3.001)},
        {"norms": (3.0, math.inf)},
        {"apart": {"a": 0.0, "b": 1e-3}},
        {"apart": {"a": 0.0}},  # no rank holds b
    ],
)
def test_one_rank_that_differs_is_enough(change):
    other = replace(GOOD, **change)
    apart = {"apart": change["apart"]} if "apart" in change else {}
    found = judged(replace(GOOD, **apart), other)
    assert found.verdict == "DIFFERENT"


def test_the_furthest_parameter_is_named_relative_to_the_way_of_all():
    found = judged(replace(GOOD, apart={"a": 0.0, "b": 2.0}))
    assert (found.worst, found.parameters) == ("b", 1.0)


def test_a_buffer_that_is_off_is_named_relative_to_its_own_way():
    plain = replace(PLAIN, buffers={"mean": 0.1, "table": 0.0})
    plan = replace(Plan.parse("fp32"), optimizer=Optimizer.parse("sgd lr=1"))
    for mean, table, verdict, worst in [
        (0.0, 0.0, "same", "b"),
        (1e-6, 0.0, "same", "mean"),
        (0.01, 0.0, "DIFFERENT", "mean"),
        (0.0, 1e-9, "DIFFERENT", "table"),  # the reference never moved it
        (0.0, math.nan, "DIFFERENT", "table"),
    ]:
        rank = replace(GOOD, apart={**GOOD.apart, "mean": mean, "table": table})
        found = judge(BLANK, plan, plain, [rank])
        assert (found.verdict, found.worst) == (verdict, worst)


def test_a_difference_comes_with_what_the_run_said_of_it():
    rank = replace(GOOD, losses=(2.0, 1.1), said=("results depend on the micro-batch",))
    assert judged(rank, rank).reason == "furthest is b; results depend on the micro-batch"


def test_parameters_are_judged_under_plain_sgd_alone():
    moved = replace(GOOD, apart={"a": 0.0, "b": 4.0})
    assert judged(moved, optimizer="adamw lr=1").same
    assert judged(moved, optimizer="sgd lr=1 clip=1").same
    assert not judged(moved).same


def test_what_is_allowed_follows_the_narrowest_type():
    assert narrowest(Plan.parse("fp32 ddp")) == "float32"
    assert narrowest(Plan.parse("bf16 ddp")) == "bfloat16"
    assert narrowest(Plan.parse("fp32 ddp compress=fp16")) == "float16"
    assert narrowest(Plan.parse("fp16 ddp compress=bf16")) == "bfloat16"


def test_steps_that_both_leave_out_agree_and_one_that_one_leaves_out_does_not():
    assert relative(math.inf, math.inf) == 0.0 and relative(math.nan, math.inf) == 0.0
    assert not relative(1.0, math.nan) <= 1e-5
    assert relative(0.0, 1.0) == math.inf
    assert math.isnan(largest([1.0, math.nan, 2.0])) and math.isnan(largest([math.nan, 1.0]))
