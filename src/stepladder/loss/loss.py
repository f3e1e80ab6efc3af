"""How a module's output becomes one number, and over how many targets that number is a mean.

[Note: a mean of means is wrong] Micro-batches and ranks rarely hold equally many valid targets. So
every loss here is a mean over the valid targets of one micro-batch, and whoever adds micro-batches
up weighs it by that count over the whole global batch's count. The sum is then exactly the loss of
the global batch, however it was cut.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn
from torch.nn import functional

from stepladder.data import IGNORED, Batch
from stepladder.errors import ModelError, nearest
from stepladder.model import base_model

from .sliced_cross_entropy import is_sliced, sliced_cross_entropy

SHIFTING = ("ForCausalLM", "LMHeadModel")  # they compare position i with label i + 1 themselves


@dataclass(frozen=True, slots=True)
class Loss:
    """How outputs and targets become a mean loss, and over how many targets it is one."""

    function: Callable[[Any, Any], torch.Tensor]
    shifted: bool = False  # the first label of every row is not a target
    kind: Literal["cross_entropy", "own", "other"] = "other"  # what rungs may know of the function

    def mean(self, outputs: Any, batch: Batch) -> torch.Tensor:
        """The mean over this micro-batch's valid targets."""
        loss = self.function(outputs, batch.targets)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise ModelError(
                "loss", f"returned {describe(loss)}, not one number", "Reduce it with .mean()."
            )
        return loss.reshape(())

    def count(self, batch: Batch) -> int:
        """Valid targets of these rows."""
        return batch.valid - (batch.leading if self.shifted else 0)


def make_loss(loss: str | Callable[[Any, Any], torch.Tensor] | None, module: nn.Module) -> Loss:
    """A loss from a name, a function of (outputs, targets), or None for the module's own."""
    if loss is None:
        shifted = type(base_model(module)).__name__.endswith(SHIFTING)
        return Loss(lambda outputs, targets: own_loss(outputs, module), shifted, "own")
    if isinstance(loss, str):
        if loss not in NAMED:
            raise ModelError("loss", f"'{loss}' is not a loss", nearest(loss, NAMED))
        return Loss(NAMED[loss], kind="cross_entropy" if loss == "cross_entropy" else "other")
    return Loss(loss)


def own_loss(outputs: Any, module: nn.Module) -> torch.Tensor:
    """The loss inside a module's output, or the output itself when it is one number."""
    found = outputs.get("loss") if isinstance(outputs, dict) else getattr(outputs, "loss", None)
    if found is None and isinstance(outputs, torch.Tensor) and outputs.numel() == 1:
        found = outputs
    if found is None:
        raise ModelError(
            "loss",
            f"{type(module).__name__} returns {describe(outputs)} and no loss",
            "Give climb one: loss='cross_entropy', or a function of (outputs, targets).",
        )
    return found


def cross_entropy(outputs: Any, targets: torch.Tensor) -> torch.Tensor:
    logits = getattr(outputs, "logits", outputs)
    if is_sliced(logits):
        return sliced_cross_entropy(logits, targets)
    classes = logits.shape[-1]
    # In fp32 whatever the logits came in: the sum over a large vocabulary needs the bits.
    return functional.cross_entropy(
        logits.reshape(-1, classes).float(), targets.reshape(-1), ignore_index=IGNORED
    )


def squared_error(outputs: Any, targets: torch.Tensor) -> torch.Tensor:
    return functional.mse_loss(outputs.float(), targets.float())


NAMED = {"cross_entropy": cross_entropy, "squared_error": squared_error}


def describe(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return f"a {type(value).__name__}"
