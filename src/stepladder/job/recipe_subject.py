"""A recipe as the subject of a proof: its model, data and settings, made anew in each process."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from torch import nn

from stepladder.data import Source
from stepladder.job.opening.open_recipe import build_model, open_sources
from stepladder.plan import Plan, Recipe
from stepladder.verify import Subject


def subject_of_recipe(recipe: Recipe) -> Subject:
    return Subject(recipe.model.name, partial(make_from_recipe, recipe))


def make_from_recipe(recipe: Recipe) -> tuple[nn.Module, Source, str]:
    """The recipe's model, its training data and its loss."""
    module = build_model(recipe)
    return module, open_sources(recipe, module)[0], "cross_entropy"


def training_settings(recipe: Recipe) -> dict[str, Any]:
    """How the recipe trains, as a journey's arguments."""
    return {
        "optimizer": recipe.optimizer_choice(),
        "rate": str(recipe.rate_choice()),
        "seed": recipe.train.seed,
        "data_seed": recipe.data.seed,
    }


def with_recipe_batch(plan: Plan, recipe: Recipe) -> Plan:
    """The plan with the recipe's batch where it names none."""
    rows = plan.batch.sequences or recipe.train.batch
    return replace(plan, batch=replace(plan.batch, sequences=rows))
