"""What a module is traced on: the inputs among a sample, without what only its loss reads."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from stepladder.errors import ModelError

from .anatomy.anatomy import Anatomy
from .forward_arguments import ForwardArguments

TARGETS = ("labels", "label", "targets", "target")  # by which a module computes its own loss


def inputs_of(module: nn.Module, anatomy: Anatomy, sequence: int | None, sample: Any) -> Any:
    if sample is not None:
        inputs = getattr(sample, "inputs", sample)
        inputs = inputs[0] if is_pair(inputs, module) else inputs
        if isinstance(inputs, Mapping):  # a tokenizer's BatchEncoding, too
            return ForwardArguments.of(module).chosen(dict(inputs))
        return inputs
    length = sequence or max_sequence(module)
    if anatomy.embedding is None or length is None:
        raise ModelError(
            type(module).__name__,
            "cannot be traced without knowing what it reads",
            "Give a sample, the inputs of one row (sample=, --sample); where it reads tokens, a "
            "sequence length is enough.",
        )
    return torch.zeros(1, length, dtype=torch.long)


def is_pair(sample: Any, module: nn.Module) -> bool:
    """Whether a sample is inputs and targets, as a step takes it, and not two inputs.

    A step takes every pair for inputs and targets. So does this, unless the module cannot be called
    with the first alone: then these are its inputs, without targets.
    """
    if not isinstance(sample, (tuple, list)) or len(sample) != 2:
        return False
    if isinstance(sample[0], (tuple, list, Mapping)):
        return True
    try:
        inspect.signature(module.forward).bind(sample[0])
    except TypeError:
        return False
    except ValueError:  # a forward without a signature
        return True
    return True


def max_sequence(module: nn.Module) -> int | None:
    """The sequence length a module was built for, if it says so."""
    shape, config = getattr(module, "shape", None), getattr(module, "config", None)
    names = (shape, "sequence"), (config, "max_position_embeddings"), (config, "n_positions")
    return next((v for o, name in names if isinstance(v := getattr(o, name, None), int)), None)


def without_targets(inputs: Any) -> dict[str, Any] | None:
    """The inputs without those that a module computes its own loss by; None: there are none."""
    if not isinstance(inputs, Mapping) or not any(inputs.get(name) is not None for name in TARGETS):
        return None
    return {name: value for name, value in inputs.items() if name not in TARGETS}
