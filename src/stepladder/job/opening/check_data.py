"""Whether a recipe's model can read its data, found before any rank computes."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from stepladder.data import Batch, SampleOrder, Source, iter_tensors, load_batch
from stepladder.data.batch import TARGET_KEYS, map_tensors
from stepladder.errors import DataError
from stepladder.model import meta_copy
from stepladder.model.call_module import call
from stepladder.plan import Recipe

BUILT_IN = "stepladder.model.builtin."


def check_data(module: nn.Module, training: Source, recipe: Recipe) -> None:
    """Refuse a model of images on text and the like, in one line."""
    sample = load_batch(training, SampleOrder(len(training)), np.arange(1))
    if problem := reading_problem(module, sample):
        raise DataError(
            "data.source",
            f"a sample of '{recipe.data.source}' is {describe(sample)}, which "
            f"{recipe.model.name} cannot read ({problem})",
            "Choose a model for this data, or data for this model.",
        )


def reading_problem(module: nn.Module, sample: Batch) -> str:
    """Why a module cannot read a sample; empty if it can, or if only running it would tell.

    A built-in model is called on tensors without numbers. Of any other one only the kind of its
    inputs is known: whole numbers for a vocabulary.
    """
    if not type(module).__module__.startswith(BUILT_IN):
        words = getattr(getattr(module, "config", None), "vocab_size", None)
        return "it reads tokens" if words and not has_tokens(sample) else ""
    drawn = meta_copy(module).eval()
    try:
        with torch.no_grad():
            call(drawn, map_tensors(lambda tensor: tensor.to("meta"), sample.inputs))
    except (RuntimeError, ValueError, TypeError, IndexError) as refused:
        return str(refused).partition("\n")[0] or type(refused).__name__
    return ""


def has_tokens(sample: Batch) -> bool:
    inputs = sample.inputs
    if isinstance(inputs, dict):
        inputs = {name: part for name, part in inputs.items() if name not in TARGET_KEYS}
    return not all(tensor.is_floating_point() for tensor in iter_tensors(inputs))


def describe(sample: Batch) -> str:
    """The shape and type of what a model is given."""
    first = sample.tensors()[0]
    return f"{str(first.dtype).removeprefix('torch.')} of shape {tuple(first.shape[1:])}"
