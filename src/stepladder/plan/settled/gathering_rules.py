"""Legality rules: gathering parameters ahead of use, and holding them, where ranks hold slices.

Each rule looks at a plan without open axes and answers with the problem or with None.
"""

from __future__ import annotations

from stepladder.errors import PlanError
from stepladder.plan.plan import Plan

from .settled_plan import SettledPlan


def prefetch_needs_slices(plan: Plan) -> PlanError | None:
    if plan.prefetch is None or SettledPlan(plan).sliced:
        return None
    problem = f"prefetch={plan.prefetch} gathers blocks from slices, and {holder(plan)}"
    return PlanError("prefetch", problem, "Use zero3 on several ranks, or leave prefetch out.")


def gathered_needs_zero3(plan: Plan) -> PlanError | None:
    if plan.gathered is None or SettledPlan(plan).drops_gathered:
        return None
    zero2 = "zero2 keeps every block until the batch's last backward"
    why = zero2 if SettledPlan(plan).sliced else holder(plan)
    problem = f"gathered={plan.gathered} limits the blocks gathered from slices, and {why}"
    return PlanError("gathered", problem, "Use zero3 on several ranks, or leave gathered out.")


def holder(plan: Plan) -> str:
    """Who holds parameters whole, so that there is nothing to gather."""
    copies = "ddp" if plan.layout.replicate > 1 else "each rank"
    who = ("zero1" if plan.zero == 1 else f"zero{plan.zero} on one rank") if plan.zero else copies
    return f"{who} holds them whole"


def gathered_holds_what_is_ahead(plan: Plan) -> PlanError | None:
    ahead = SettledPlan(plan).gathered_ahead
    if plan.gathered is None or plan.gathered > ahead:
        return None
    usual = "" if plan.prefetch is not None else " by default"
    problem = (
        f"{plan.gathered} whole at a time leave no room for the one that computes and {ahead} "
        f"gathered ahead{usual}"
    )
    remedy = f"Use gathered={ahead + 1} or prefetch={plan.gathered - 1}."
    return PlanError("gathered", problem, remedy)


def gathered_needs_turns(plan: Plan) -> PlanError | None:
    """Later micro-batches of a pipeline run forward while earlier ones wait for backward."""
    stages = plan.layout.pipeline
    if plan.gathered is None or stages == 1:
        return None
    problem = f"pipeline={stages} mixes forward and backward passes, so that more would be whole"
    return PlanError("gathered", problem, "Leave gathered out, or use shard instead of pipeline.")
