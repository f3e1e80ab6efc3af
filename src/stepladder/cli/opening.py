"""What a recipe names, opened: its plan, its data, its model."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from stepladder.data import Source, Split, open_source
from stepladder.model import build, build_own, names_own
from stepladder.plan import Plan, Recipe, scale_rate
from stepladder.train import Choice, choose_plan
from stepladder.world import Place

BYTES = 256  # a vocabulary of this size is read as bytes


def choose(recipe: Recipe, plan: Plan | None, module: nn.Module) -> Choice:
    """The plan, with the recipe's batch and optimizer where the plan names none."""
    place, size = Place.from_environment(), recipe.train.batch
    choice = (
        Choice(plan)
        if plan
        else choose_plan("auto", recipe.train.device, place, model=module, batch=size)
    )
    chosen = choice.plan
    batch = chosen.batch
    size = batch.sequences or size
    batch = replace(batch, sequences=size)
    how = recipe.optimizer_choice()
    if recipe.train.scale_rate != "none":
        reference = recipe.train.reference_batch or recipe.train.batch
        lr = scale_rate(how.lr, batch=size, reference=reference, rule=recipe.train.scale_rate)
        how = replace(how, lr=lr)
    return Choice(replace(chosen, batch=batch, optimizer=how), choice.because)


def open_sources(recipe: Recipe, module: nn.Module) -> tuple[Source, Source]:
    """The training and the validation part of the recipe's data."""
    vocabulary = getattr(getattr(module, "shape", None), "vocab", BYTES)
    splits: tuple[Split, Split] = ("train", "validation")
    training, validation = (
        open_source(recipe.data, length=recipe.model.sequence, vocabulary=vocabulary, split=split)
        for split in splits
    )
    return training, validation


def build_model(recipe: Recipe) -> nn.Module:
    choice, seed = recipe.model, recipe.train.seed
    if names_own(choice.name):
        return build_own(choice.name, seed=seed, sequence=choice.sequence, dropout=choice.dropout)
    reads_tokens = choice.name.startswith(("gpt", "llama", "mistral"))
    sequence = choice.sequence if reads_tokens else None
    return build(choice.name, seed=seed, sequence=sequence, dropout=choice.dropout)
