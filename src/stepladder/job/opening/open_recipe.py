"""What a recipe names, opened: its model, its data, its plan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from stepladder.data import (
    Batch,
    ReadPolicy,
    SampleOrder,
    Source,
    load_batch,
    open_source,
)
from stepladder.data.open_source import refuse_token_options
from stepladder.data.streams.streamed_source import StreamedSource
from stepladder.data.validation_split import Split
from stepladder.job.opening.start_weights import weights_text
from stepladder.model import build, builtin_shape
from stepladder.model.huggingface.lora import add_lora
from stepladder.model.huggingface.packed_documents import accept_packed_documents
from stepladder.model.huggingface.pretrained import is_pretrained_path
from stepladder.plan import Optimizer, Plan, Recipe
from stepladder.plan.learning_rate import scale_rate
from stepladder.plan.recipe import DataChoice
from stepladder.train import Run, climb
from stepladder.train.feed import Feed
from stepladder.train.tuning.auto_plan import Choice, choose_plan
from stepladder.train.user_code.user_code import LossFunction, UserCode
from stepladder.train.user_code.user_model import build_user_model, model_reference
from stepladder.world import Place

BYTES = 256  # a vocabulary of this size is read as bytes


def choose_recipe_plan(
    recipe: Recipe, plan: Plan | None, module: nn.Module, sample: Batch | None = None
) -> Choice:
    """The plan, with the recipe's batch and optimizer where the plan names none."""
    place, size = Place.from_environment(), recipe.train.batch
    choice = (
        Choice(plan)
        if plan
        else choose_plan(
            "auto", recipe.train.device, place, model=module, sample=sample, batch=size
        )
    )
    chosen = choice.plan
    batch = chosen.batch
    size = batch.sequences or size
    batch = replace(batch, sequences=size)
    how = recipe_optimizer(recipe, size)
    return Choice(replace(chosen, batch=batch, optimizer=how), choice.because)


def recipe_optimizer(recipe: Recipe, size: int) -> Optimizer:
    """The recipe's optimizer, at the learning rate for a batch of so many samples."""
    how = recipe.optimizer_choice()
    if recipe.train.scale_rate == "none":
        return how
    reference = recipe.train.reference_batch or recipe.train.batch
    lr = scale_rate(how.lr, batch=size, reference=reference, rule=recipe.train.scale_rate)
    return replace(how, lr=lr)


def climb_recipe(
    recipe: Recipe,
    module: nn.Module,
    *,
    plan: Plan | str,
    sample: Batch | None,
    loss: str | LossFunction | None,
    optimizer: Optimizer | None = None,
) -> Run:
    """The run of a module as the recipe says; `optimizer` replaces that of the plan."""
    return climb(
        module,
        loss=loss,
        optimizer=optimizer,
        plan=plan,
        sample=sample,
        rate=recipe.rate_choice(),
        seed=recipe.train.seed,
        device=recipe.train.device,
        nonfinite=recipe.train.nonfinite,
        exact=recipe.train.exact,
        timeout_seconds=recipe.run.timeout_seconds,
    )


def user_code(recipe: Recipe) -> UserCode:
    """What of the recipe is the user's own, with what stands beside their module.

    Data that was left at its default counts as not named.
    """
    data, default = recipe.data, DataChoice()
    stated = data.source if data.source != default.source else ""
    code = UserCode(recipe.model.name, sample=data.sample, data=stated, loss=recipe.train.loss)
    return code.complete()


def open_sources(recipe: Recipe, module: nn.Module) -> tuple[Source, Source]:
    """The training and the validation part of the recipe's data."""
    code = user_code(recipe)
    if own := code.samples():
        keys = ("dtype", "column", "document_end", "tokenizer")
        refuse_token_options(recipe.data, code.data or code.sample, keys)
        return own
    splits: tuple[Split, Split] = ("train", "validation")
    training, validation = (
        open_source(
            recipe.data,
            length=recipe.model.sequence,
            vocabulary=vocabulary_of(module),
            split=split,
            tokenizer=tokenizer_in_folder(recipe.model.name),
        )
        for split in splits
    )
    return training, validation


def vocabulary_of(module: nn.Module) -> int:
    """How many tokens the module knows; a byte's where it does not say."""
    shape, config = getattr(module, "shape", None), getattr(module, "config", None)
    found: Any = getattr(shape, "vocab", None) or getattr(config, "vocab_size", None)
    return found if isinstance(found, int) else BYTES


def tokenizer_in_folder(name: str) -> str:
    """The tokenizer of a model that is a folder, where the folder holds one."""
    path = Path(name).expanduser() / "tokenizer.json"
    return str(path) if is_pretrained_path(name) and path.is_file() else ""


def first_sample(training: Source, module: nn.Module) -> Batch | None:
    """One sample, for tracing a module that declares no shape; None where it declares one."""
    if builtin_shape(module) is not None:
        return None
    return load_batch(training, SampleOrder(len(training)), np.arange(1))


def sample_for_climb(
    recipe: Recipe, plan: Plan, training: Source, module: nn.Module
) -> Batch | None:
    """What `climb` needs of the data: a rank's share of the first batch, where a budget is fitted.

    A memory budget for activations depends on the rows of a micro-batch, whatever the module is.
    """
    if plan.recompute.kind != "budget":
        return first_sample(training, module)
    ranks = plan.layout.settle(Place.from_environment().num_ranks).data_ranks
    rows = -(-(plan.batch.sequences or recipe.train.batch) // ranks)
    return load_batch(training, SampleOrder(len(training), recipe.data.seed), np.arange(rows))


def build_model(recipe: Recipe) -> nn.Module:
    """The model, with its adapters, ready to read what the recipe's data gives."""
    choice = recipe.model
    module = named_model(recipe)
    if choice.lora:
        module = add_lora(module, choice.lora, recipe.train.seed)
    packs = is_pretrained_path(choice.name) and recipe.data.packed
    return accept_packed_documents(module) if packs else module


def named_model(recipe: Recipe) -> nn.Module:
    choice, seed = recipe.model, recipe.train.seed
    if reference := model_reference(choice.name):
        return build_user_model(
            reference,
            seed=seed,
            sequence=choice.sequence,
            dropout=choice.dropout,
            weights=choice.weights,
            packed=recipe.data.packed or recipe.data.document_end >= 0,
        )
    known = choice.name.startswith(("gpt", "llama", "mistral"))
    reads_tokens = known or is_pretrained_path(choice.name)
    return build(
        choice.name,
        seed=seed,
        sequence=choice.sequence if reads_tokens else None,
        dropout=choice.dropout,
        weights=weights_text(recipe),
    )


def training_batches(run: Run, recipe: Recipe, source: Source, *, uneven: bool = False) -> Feed:
    """This rank's training batches, from where the run stands.

    Args:
        uneven: let the ranks' shares of a batch differ by a row where it does not divide.
    """
    how = recipe.data
    return run.batches(
        source.stream if isinstance(source, StreamedSource) else source,
        size=recipe.train.batch,
        seed=how.seed,
        workers=int(how.workers) if how.workers.isdigit() else how.workers,
        lengths=how.lengths or None,
        longest=how.longest or None,
        uneven=uneven,
        reading=ReadPolicy.parse(how.faults),
    )
