"""A recipe as the subject of a proof: its model, data and settings, made anew in each process."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from torch import nn

from stepladder.data import Source
from stepladder.job.opening.open_recipe import build_model, open_sources, user_code
from stepladder.job.opening.plan_optimizer import take_plan_optimizer
from stepladder.job.preferences.prefer_answers import read_loss
from stepladder.plan import Plan, Recipe
from stepladder.train.user_code.user_code import LossFunction
from stepladder.verify import Subject


def subject_of_recipe(recipe: Recipe) -> Subject:
    taken = user_code(recipe).taken
    return Subject(recipe.model.name, partial(make_from_recipe, recipe), taken=taken)


def make_from_recipe(recipe: Recipe) -> tuple[nn.Module, Source, str | LossFunction | None]:
    """The recipe's model, its training data and its loss."""
    module = build_model(recipe)
    training = open_sources(recipe, module)[0]
    return module, training, read_loss(recipe, module, training)


def training_settings(recipe: Recipe) -> dict[str, Any]:
    """How the recipe trains, as a journey's arguments."""
    return {
        "optimizer": take_plan_optimizer(recipe, None).optimizer_choice(),
        "rate": str(recipe.rate_choice()),
        "seed": recipe.train.seed,
        "data_seed": recipe.data.seed,
    }


def with_recipe_batch(plan: Plan, recipe: Recipe) -> Plan:
    """The plan with the recipe's batch where it names none."""
    rows = plan.batch.sequences or recipe.train.batch
    return replace(plan, batch=replace(plan.batch, sequences=rows))
