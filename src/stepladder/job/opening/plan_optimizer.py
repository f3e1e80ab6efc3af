"""The optimizer of a recipe whose plan names one: `--plan "fp32 optimizer='sgd lr=0.1'"`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from stepladder.errors import PlanError
from stepladder.plan import Optimizer, Plan, Recipe


def take_plan_optimizer(recipe: Recipe, plan: Plan | str | None) -> Recipe:
    """The recipe with the optimizer that its plan names; a recipe may name one only once.

    Args:
        plan: instead of the recipe's own.
    """
    named = optimizer_named(recipe.plan if plan is None else plan)
    if named is None:
        return recipe
    if not recipe.optimizer:
        return replace(recipe, optimizer=table_of(named))
    if (stated := recipe.optimizer_choice()) != named:
        problem = f"the plan names '{named}', and the recipe's [optimizer] '{stated}'"
        raise PlanError("optimizer", problem, "Name it in one of them.")
    return recipe


def optimizer_named(plan: Plan | str | Mapping[str, Any]) -> Optimizer | None:
    """The optimizer that a plan names; of a plan that is no text, one that is not the default."""
    if isinstance(plan, Plan):
        return plan.optimizer if plan.optimizer != Optimizer() else None
    if isinstance(plan, str):
        words = (word.partition("=") for word in shlex.split(plan))
        plan = {key: value for key, _, value in words}
    return Optimizer.parse(str(plan["optimizer"])) if "optimizer" in plan else None


def table_of(optimizer: Optimizer) -> dict[str, Any]:
    """The [optimizer] section with every setting spelled out, so that no default of it counts."""
    usual = Optimizer.usual(optimizer.name)
    rates = ["lr", "wd", "clip", *(["adamw_lr"] if optimizer.name == "muon" else [])]
    table: dict[str, Any] = {"name": optimizer.name}
    for setting in (f.name for f in fields(optimizer) if f.name not in ("name", "groups")):
        value = getattr(optimizer, setting)
        if setting in rates or value != getattr(usual, setting):
            text = ",".join(map(repr, value)) if setting == "betas" else value
            table[setting] = "none" if text is None else text
    if optimizer.groups:
        table["group"] = [str(group).removeprefix("group=") for group in optimizer.groups]
    return table
