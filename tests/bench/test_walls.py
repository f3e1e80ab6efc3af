"""The walls: what is compared at each, the budget, and the planner's answers."""

import pytest

from stepladder.bench.counted_plans import CountedPlan
from stepladder.bench.walls import (
    COMMUNICATION,
    COMPUTE,
    MEMORY,
    CountedRow,
    WallLoad,
    budget_of,
    forecast_walls,
    plans_of,
)
from stepladder.errors import PlanError
from stepladder.plan import Plan
from stepladder.record import Memory


def test_every_plan_settles_and_is_compared_at_a_wall():
    load = WallLoad(batch=16, ranks=2)
    load.check()
    plans = plans_of(load)
    for plan in plans:
        settled = Plan.parse(plan.words).settle(2)
        assert settled.batch.sequences == plan.samples
        assert set(plan.walls) <= {MEMORY, COMMUNICATION} and plan.walls
    assert plans[0].name == "plain" and plans[0].walls == (MEMORY, COMMUNICATION)
    assert {plan.samples for plan in plans} == {16, 64}


def test_a_batch_that_cannot_be_accumulated_says_which_can():
    with pytest.raises(PlanError) as error:
        WallLoad(batch=12, ranks=2).check()
    assert str(error.value) == (
        "batch: 12 samples do not divide over 2 ranks in 4 micro-batches. Use a multiple of 8."
    )


def test_the_budget_is_two_thirds_of_the_plain_plan_unless_one_is_given():
    held = CountedPlan("fp32", 8, Memory(600, 0, 0, 300), 80)
    rows = [CountedRow((MEMORY,), "plain", held)]
    assert budget_of(rows, None) == 600 and budget_of(rows, 500) == 500
    assert held.sent_per_sample == 10


def test_the_planner_sees_each_wall_and_a_way_past_it():
    rows = {wall: [r for r in forecast_walls() if r.wall == wall]
            for wall in (MEMORY, COMPUTE, COMMUNICATION)}  # fmt: skip
    fits = [row.fits for row in rows[MEMORY]]
    assert fits[0] is False and fits[-1] is True
    days = [row.days for row in rows[COMPUTE]]
    assert days == sorted(days, reverse=True) and days[0] > 7 * days[1] > 0
    shares = {row.plan: row.communication_share for row in rows[COMMUNICATION]}
    plain, compressed = "bf16 ddp micro=4 batch=128", "bf16 ddp micro=4 batch=128 compress="
    assert shares[plain] > 0.9 and shares[f"{compressed}powersgd:4"] < 0.1
