"""What cannot be asked for together, whatever the model and the machine.

Each rule looks at a settled plan and answers with the problem or with None.
"""

from __future__ import annotations

from stepladder.errors import PlanError

from .plan import Plan
from .schedule_rules import (
    interleaving_turns,
    passes_fill_stages,
    virtual_needs_pipeline,
    zero_bubble_keeps_parameters,
    zero_bubble_runs_again_twice,
    zero_bubble_splits_what_it_sees,
)


def composition_problems(plan: Plan) -> list[PlanError]:
    """Every rule below that a settled plan breaks."""
    return [problem for rule in RULES if (problem := rule(plan)) is not None]


def compression_needs_copies(plan: Plan) -> PlanError | None:
    if plan.compress.kind == "none" or (plan.zero == 0 and plan.layout.replicate > 1):
        return None
    problem = f"{plan.compress} shrinks gradients that whole copies exchange, and there are none"
    return PlanError("compress", problem, "Use ddp with several ranks, or compress=none.")


def compression_needs_whole_matrices(plan: Plan) -> PlanError | None:
    layout = plan.layout
    if plan.compress.kind == "none" or layout.tensor * layout.pipeline == 1:
        return None
    problem = f"{plan.compress} works on whole modules, and {layout} cuts them"
    return PlanError("compress", problem, "Use ddp alone, or compress=none.")


def factors_need_a_steady_scale(plan: Plan) -> PlanError | None:
    if plan.compress.kind != "powersgd" or not plan.precision.scaled:
        return None
    problem = (
        f"{plan.compress} adds to each step what earlier ones missed, "
        f"and the loss scale of {plan.precision} changes between them"
    )
    return PlanError("compress", problem, "Use bf16, or compress=fp16.")


def parameters_leave_in_slices(plan: Plan) -> PlanError | None:
    if "parameters" not in plan.offload or plan.zero == 3:
        return None
    problem = "parameters can wait on the host only where each block gathers them before use"
    return PlanError("offload", problem, "Use zero3, or offload=optimizer.")


def adafactor_needs_whole_matrices(plan: Plan) -> PlanError | None:
    layout = plan.layout
    sliced = plan.zero > 0 and layout.shard * layout.context > 1
    if plan.optimizer.name != "adafactor" or not (sliced or layout.tensor > 1):
        return None
    problem = f"adafactor averages rows and columns of whole matrices, and {layout} slices them"
    return PlanError("optimizer", problem, "Use adamw, or ddp with whole copies.")


def kernels_need_one_rank(plan: Plan) -> PlanError | None:
    layout = plan.layout
    if not plan.kernels or layout.num_ranks == 1:
        return None
    problem = (
        f"the fused loss reads whole plain matrices, and {layout} has {layout.num_ranks} ranks"
    )
    return PlanError("kernels", problem, "Leave kernels out; compile=on works on any rank.")


RULES = (
    compression_needs_copies,
    compression_needs_whole_matrices,
    factors_need_a_steady_scale,
    parameters_leave_in_slices,
    adafactor_needs_whole_matrices,
    kernels_need_one_rank,
    passes_fill_stages,
    interleaving_turns,
    virtual_needs_pipeline,
    zero_bubble_keeps_parameters,
    zero_bubble_runs_again_twice,
    zero_bubble_splits_what_it_sees,
)
