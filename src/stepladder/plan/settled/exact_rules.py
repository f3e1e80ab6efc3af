"""Legality rules: what cannot give the same bits on any number of ranks (`exact=ranks`), or twice.

Each rule looks at a plan without open axes and answers with the problem or with None.
"""

from __future__ import annotations

from stepladder.errors import PlanError
from stepladder.plan.plan import Plan

LEAVE_OUT = "Leave it or exact=ranks out."
PROVED = ("fp32", "tf32", "bf16", "fp16")  # stored in float32: slices are added up in it


def exact_cuts_no_layer(plan: Plan) -> PlanError | None:
    layout = plan.layout
    cut = [
        axis for axis in ("tensor", "context", "experts", "pipeline") if getattr(layout, axis) > 1
    ]
    if not plan.exact.slices or not cut:
        return None
    problem = f"{cut[0]}={getattr(layout, cut[0])} cuts the sums inside a layer or a sequence"
    return PlanError("exact", problem, "Use ddp, zero1, zero2 or zero3 alone.")


def exact_shards_over_all_ranks(plan: Plan) -> PlanError | None:
    layout = plan.layout
    if not plan.exact.slices or plan.zero < 2 or layout.replicate == 1:
        return None
    problem = f"{layout} adds up gradients in two rounds, within shards and between their copies"
    return PlanError("exact", problem, f"Use zero{plan.zero} shard=-1, or zero1.")


def exact_runs_the_same_kernels(plan: Plan) -> PlanError | None:
    """Kernels and recorded graphs run on one rank only, the compiler fuses by the layout."""
    if not plan.exact.slices:
        return None
    reasons = {
        "compile": "fuses whole modules on one rank and blocks on several, and rounds as it fuses",
        "kernels": "run on one rank only, and round otherwise than torch's own",
        "graphs": "record all micro-batches as one, and slices are added up between them",
    }
    for field, reason in reasons.items():
        if getattr(plan, field):
            return PlanError(field, f"{reason}; exact=ranks asks for the same bits", LEAVE_OUT)
    return None


def exact_stores_float32(plan: Plan) -> PlanError | None:
    if not plan.exact.slices or plan.precision.name in PROVED:
        return None
    problem = f"{plan.precision} is not proved to give the same bits on any number of ranks"
    return PlanError("precision", problem, f"Use {', '.join(PROVED[:-1])} or {PROVED[-1]}.")


def exact_sends_whole_gradients(plan: Plan) -> PlanError | None:
    if not plan.exact.slices or (plan.compress.kind == "none" and not plan.offload):
        return None
    if plan.offload:
        problem = f"{plan.offload[0]} on the host are updated or fetched as the ranks divide them"
        return PlanError("offload", f"{problem}; exact=ranks asks for the same bits", LEAVE_OUT)
    problem = f"{plan.compress} rounds what travels between ranks, and one rank sends nothing"
    return PlanError("compress", problem, LEAVE_OUT)


def recheck_needs_exact(plan: Plan) -> PlanError | None:
    """Without it two tries of a step may differ by rounding, and nothing would be wrong."""
    if not plan.recheck or (plan.exact.runs and not plan.exact.free):
        return None
    problem = f"recheck={plan.recheck} compares bits, and without exact a step may round otherwise"
    return PlanError("recheck", problem, "Add exact=runs or exact=ranks, or leave recheck out.")
