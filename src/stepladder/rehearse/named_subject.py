"""What is rehearsed where a model is named: a preset, a shape, a folder, or code of the user's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from stepladder.model import build
from stepladder.model.tracing.describe import IMAGE, SAMPLE_SHAPES
from stepladder.train.user_code.trace_user_model import build_without_values, first_row
from stepladder.train.user_code.user_code import UserCode
from stepladder.train.user_code.user_model import model_reference


@dataclass(frozen=True, slots=True)
class RehearsalSubject:
    """A module without memory, a batch of one row, and its loss."""

    module: nn.Module
    sample: Any
    loss: str | Callable[[Any, Any], torch.Tensor] | None


def subject_of_name(name: str, tokens: int) -> RehearsalSubject:
    """A built-in model or a folder's, with its usual loss.

    Args:
        tokens: of a sequence; 1 or fewer for a model that reads pictures.
    """
    named = str(Path(name).parent) if name.endswith(".json") else name
    if tokens > 1:
        module = build(named, device="meta", sequence=tokens)
        ids = torch.zeros(1, tokens, dtype=torch.long)
        return RehearsalSubject(module, (ids, ids), "cross_entropy")
    module = build(named, device="meta")
    image = torch.zeros(1, *SAMPLE_SHAPES.get(named, IMAGE))
    return RehearsalSubject(module, (image, torch.zeros(1, dtype=torch.long)), "cross_entropy")


def subject_of_code(code: UserCode, sequence: int | None = None) -> RehearsalSubject:
    """The user's module with a row of their data, and the loss they train with."""
    reference = model_reference(code.model)
    assert reference is not None
    samples = code.training_samples()
    assert samples is not None
    module = build_without_values(reference, sequence)
    return RehearsalSubject(module, first_row(code), code.read_loss(samples))
