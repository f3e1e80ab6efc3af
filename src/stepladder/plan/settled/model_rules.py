"""Legality rules: what a layout requires of a model. Each rule returns the problem or None."""

from __future__ import annotations

from stepladder.errors import PlanError
from stepladder.plan.plan import Plan

from .limits import ModelLimits
from .settled_plan import SettledPlan


def divisors(number: int) -> str:
    """The ways that divide a number, in words."""
    ways = [str(n) for n in range(1, min(number, 64) + 1) if number % n == 0]
    return f"Use {', '.join(ways[:-1])} or {ways[-1]}." if len(ways) > 1 else "Use 1."


def heads_divide(plan: Plan, model: ModelLimits) -> PlanError | None:
    ways = plan.layout.tensor
    for heads in model.heads:
        if heads % ways:
            problem = f"{ways} ways cannot cut {heads} attention heads evenly"
            return PlanError("layout.tensor", problem, divisors(heads))
    return None


def key_heads_divide(plan: Plan, model: ModelLimits) -> PlanError | None:
    ways = plan.layout.tensor
    for heads in model.key_value_heads:
        if heads % ways:
            problem = f"{ways} ways cannot cut {heads} key-value heads evenly"
            return PlanError("layout.tensor", problem, divisors(heads))
    return None


def widths_divide(plan: Plan, model: ModelLimits) -> PlanError | None:
    ways = plan.layout.tensor
    for part, width in model.cut_widths:
        if width % ways:
            problem = f"{ways} ways cannot cut a width of {width} in '{part}' evenly"
            return PlanError("layout.tensor", problem, divisors(width))
    return None


def something_to_cut(plan: Plan, model: ModelLimits) -> PlanError | None:
    if plan.layout.tensor == 1 or model.has_cuts:
        return None
    problem = f"{model.name} has no matrices that are known to be cut in pairs"
    return PlanError("layout.tensor", problem, "Use 1, and shard or pipeline instead.")


def tokens_divide_by_tensor(plan: Plan, model: ModelLimits) -> PlanError | None:
    layout, tokens = plan.layout, model.tokens
    ways = layout.tensor * layout.context
    whole = layout.tensor == 1 or tokens == 1  # nothing in a row: every rank has the whole stream
    if whole or tokens % ways == 0 or tokens % layout.context:
        return None
    problem = f"{tokens} tokens do not divide by tensor x context = {ways}, which slice them"
    return PlanError("layout.tensor", problem, f"Use a sequence of {tokens // ways * ways}.")


def context_divides(plan: Plan, model: ModelLimits) -> PlanError | None:
    ways, tokens = plan.layout.context, model.tokens
    if tokens % ways == 0:
        return None
    problem = f"{ways} ways cannot slice {tokens} tokens evenly"
    return PlanError("layout.context", problem, f"Use a sequence of {tokens // ways * ways}.")


def context_needs_attention(plan: Plan, model: ModelLimits) -> PlanError | None:
    if plan.layout.context == 1 or model.heads:
        return None
    problem = f"{model.name} has no attention along which a sequence could be sliced"
    return PlanError("layout.context", problem, "Use 1.")


def experts_divide(plan: Plan, model: ModelLimits) -> PlanError | None:
    ways = plan.layout.experts
    if ways > 1 and not model.experts:
        problem = f"{model.name} has no mixture whose experts {ways} ranks could hold"
        return PlanError("layout.experts", problem, "Use 1.")
    for experts in model.experts:
        if experts % ways:
            problem = f"{ways} ways cannot hold {experts} experts evenly"
            return PlanError("layout.experts", problem, divisors(experts))
    return None


def modules_stay_whole(plan: Plan, model: ModelLimits) -> PlanError | None:
    layout = plan.layout
    if not model.modules or layout.experts == 1 or layout.tensor == 1:
        return None
    problem = f"{model.name} holds experts as modules, which {layout.tensor} ways would cut"
    remedy = "Use tensor=1 beside experts=, or stack them, as transformers does."
    return PlanError("layout.tensor", problem, remedy)


def stages_have_blocks(plan: Plan, model: ModelLimits) -> PlanError | None:
    if plan.layout.pipeline > 1 and not model.num_blocks:
        problem = f"{model.name} has no list of blocks, and only a run sees between which parts"
        remedy = "Use 1 to forecast it; climb takes the plan."
        return PlanError("layout.pipeline", f"{problem} it can be cut", remedy)
    return empty_stages(SettledPlan(plan), model.num_blocks)


def empty_stages(settled: SettledPlan, num_blocks: int) -> PlanError | None:
    """Too many stages for a model of so many blocks."""
    if settled.layout.pipeline == 1 or settled.num_stages <= num_blocks:
        return None
    problem = f"{settled.num_stages} stages for {num_blocks} blocks leaves some stages empty"
    most = num_blocks // settled.plan.schedule.virtual
    return PlanError("layout.pipeline", problem, f"Use at most {most}.")


def folded_ends_share_nothing(plan: Plan, model: ModelLimits) -> PlanError | None:
    return sliced_fold(SettledPlan(plan), tied=model.tied)


def sliced_fold(settled: SettledPlan, *, tied: bool) -> PlanError | None:
    """A matrix that two stages of one rank share, and that is sliced with each of them."""
    zero = settled.plan.zero
    if not (tied and settled.folded and settled.sliced) or zero == 3:  # zero3 is refused untied too
        return None
    problem = (
        f"{settled.plan.schedule} has the head and the embedding, one matrix, in two stages of a "
        f"rank, and zero{zero} slices each stage by itself"
    )
    return PlanError("schedule", problem, "Use zero1, or 1f1b.")
