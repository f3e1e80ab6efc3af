"""Legality rules: what a pipeline schedule requires of the rest of a plan."""

from __future__ import annotations

from stepladder.errors import PlanError
from stepladder.plan.options import Schedule
from stepladder.plan.plan import Plan


def fills(schedule: Schedule, micro_batches: int, stages: int) -> bool:
    """Whether so many micro-batches are enough for a schedule's turns."""
    return schedule.kind == "gpipe" or micro_batches >= stages


def whole_rounds(schedule: Schedule, micro_batches: int, stages: int) -> bool:
    return schedule.kind != "interleaved" or micro_batches % stages == 0


def passes_fill_stages(plan: Plan) -> PlanError | None:
    stages, micro_batches = plan.layout.pipeline, plan.batch.micro_batches
    if stages == 1 or micro_batches is None or fills(plan.schedule, micro_batches, stages):
        return None
    problem = f"{micro_batches} micro-batches cannot fill {stages} stages with {plan.schedule}"
    micro = plan.batch.micro or 1
    rows = micro_batches * micro  # of one data rank
    smaller = [size for size in range(1, rows // stages + 1) if rows % size == 0]
    ways = plan.layout.data_ranks * micro
    first = f"micro={smaller[-1]}" if smaller else f"a batch of {ways * stages} or more"
    return PlanError(
        "batch.accumulate", problem, f"Use {first}, or at most {micro_batches} stages."
    )


def interleaving_turns(plan: Plan) -> PlanError | None:
    stages, micro_batches = plan.layout.pipeline, plan.batch.micro_batches
    if stages == 1 or not micro_batches or whole_rounds(plan.schedule, micro_batches, stages):
        return None
    problem = (
        f"interleaved works in rounds of {stages}; {micro_batches} micro-batches are not whole "
        "rounds"
    )
    return PlanError("schedule", problem, "Use 1f1b, or a batch that makes whole rounds.")


def virtual_needs_pipeline(plan: Plan) -> PlanError | None:
    if plan.schedule.virtual == 1 or plan.layout.pipeline > 1:
        return None
    problem = f"{plan.schedule} gives each rank several stages, and there is no pipeline"
    return PlanError("schedule", problem, "Add pipeline=2, or leave it out.")


def zero_bubble_keeps_parameters(plan: Plan) -> PlanError | None:
    if plan.schedule.kind != "zero-bubble" or plan.layout.pipeline == 1 or plan.zero != 3:
        return None
    problem = "zero-bubble splits backward, and zero3 drops parameters between its halves"
    return PlanError("schedule", f"{problem}: gradients come out wrong", "Use 1f1b, or zero1.")


def zero_bubble_splits_what_it_sees(plan: Plan) -> PlanError | None:
    if plan.schedule.kind != "zero-bubble" or plan.layout.pipeline == 1 or not plan.compile:
        return None
    problem = "zero-bubble splits backward, and compiled blocks run theirs in one piece"
    return PlanError("schedule", problem, "Use 1f1b, or compile=off.")


def zero_bubble_runs_again_twice(plan: Plan) -> PlanError | None:
    if plan.schedule.kind != "zero-bubble" or plan.layout.pipeline == 1:
        return None
    once = "and both halves of a split backward need it"
    if plan.layout.context > 1:
        problem = f"context={plan.layout.context} gathers keys again once, {once}"
    elif plan.recompute.chooses:
        problem = f"recompute={plan.recompute} computes again once, {once}"
    else:
        return None
    return PlanError("schedule", problem, "Use 1f1b, or recompute=blocks without context.")
