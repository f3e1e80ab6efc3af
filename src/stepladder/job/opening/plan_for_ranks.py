"""The plan on the ranks there are: spread over them, refitted, checked against the rules."""

from __future__ import annotations

from dataclasses import asdict, replace

from stepladder.errors import PlanError, raise_all
from stepladder.plan import Plan, Recipe
from stepladder.plan.refit import refit, spread
from stepladder.plan.settled.settle import settle
from stepladder.planner import plan_problems
from stepladder.workload import Facts, find_facts
from stepladder.world import detect_cluster


def fit_ranks(
    plan: Plan | None, recipe: Recipe, ranks: int, *, elastic: bool
) -> tuple[Plan | None, str]:
    """The plan for the ranks there are, and what changed where it was made for others."""
    if plan is None:
        return None, ""
    spread_out = spread(plan, ranks)
    if not elastic:
        return spread_out, ""
    size = spread_out.batch.sequences or recipe.train.batch
    fitted = refit(replace(spread_out, batch=replace(spread_out.batch, sequences=size)), ranks)
    return fitted.plan, fitted.said


def check_for_ranks(plan: Plan | None, recipe: Recipe, ranks: int, *, uneven: bool) -> Plan:
    """The plan for so many ranks, or every rule it breaks, before any of them is started."""
    assert plan is not None
    size = plan.batch.sequences or recipe.train.batch
    plan = replace(plan, batch=replace(plan.batch, sequences=size))
    facts = facts_of_model(recipe)
    if uneven and plan.layout.num_ranks == ranks and size % plan.layout.data_ranks:
        return settle(plan, ranks, open_batch=True).plan  # refitted: shares differ by a row
    if facts is None:
        return settle(plan, ranks).plan
    raise_all(plan_problems(facts, plan, detect_cluster(processes=ranks), trial=True))
    return plan.settle(ranks)


def facts_of_model(recipe: Recipe) -> Facts | None:
    """What is known of the recipe's model by its name alone."""
    try:
        return find_facts(recipe.model.name, recipe.model.sequence)
    except PlanError:  # not among the shapes: the ranks find out what it is
        return None


def facts_to_share(recipe: Recipe, plan: Plan | str | None) -> dict[str, str]:
    """What must be equal on every rank: all of the recipe but the folder's name."""
    sections = {name: values for name, values in asdict(recipe).items() if name != "plan"}
    facts = {
        f"{section}.{key}": str(value)
        for section, values in sections.items()
        for key, value in values.items()
        if (section, key) != ("run", "folder")
    }
    return {"plan": str(plan) if plan else "auto", **facts}
