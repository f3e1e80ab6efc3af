"""Losses of generated problems: functions of (outputs, targets), as users write them.

Targets are classes (one a row, or one a position) or numbers like the logits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from .module import logits_of

Function = Callable[[Any, Any], Tensor]
NAMED = ("cross_entropy", "squared_error")  # names that stepladder knows; written out here


def flat(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    return logits.reshape(-1, logits.shape[-1]), targets.reshape(-1)


class CrossEntropy(nn.Module):
    """torch's, with whatever settings, over rows or positions of any output."""

    def __init__(self, spec: dict[str, Any], classes: int) -> None:
        super().__init__()
        weight = None
        if spec.get("weighted"):
            weight = 0.2 + 1.6 * torch.arange(classes) / classes
        self.criterion = nn.CrossEntropyLoss(
            weight=weight,
            label_smoothing=spec.get("smoothing", 0.0),
            ignore_index=spec.get("ignore_index", -100),
            reduction=spec.get("reduction", "mean"),
        )
        self.z = spec.get("z", 0.0)  # a second term: the mean square of log Z
        self.spread = spec.get("spread", 0.0)  # a second term: the mean square of the logits

    def forward(self, outputs: Any, targets: Tensor) -> Tensor:
        logits = logits_of(outputs)
        loss = self.criterion(*flat(logits, targets))
        if self.z:
            loss = loss + self.z * logits.logsumexp(-1).square().mean()
        return loss + self.spread * logits.square().mean() if self.spread else loss


class Temperature(nn.Module):
    """A loss with a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(0.7))

    def forward(self, outputs: Any, targets: Tensor) -> Tensor:
        logits = logits_of(outputs)
        return functional.cross_entropy(*flat(logits * self.temperature, targets))


def masked_mean(ignored: int) -> Function:
    """A mean over valid targets that the user wrote by hand."""

    def loss(outputs: Any, targets: Tensor) -> Tensor:
        logits, wanted = flat(logits_of(outputs), targets)
        valid = wanted != ignored
        each = functional.cross_entropy(logits, wanted.clamp(min=0), reduction="none")
        return (each * valid).sum() / valid.sum()

    return loss


def contrastive(outputs: Any, targets: Tensor) -> Tensor:
    """Every row against every other row of the batch."""
    rows = logits_of(outputs).flatten(1)
    near = functional.normalize(rows, dim=-1)
    scores = near @ near.T - 10 * torch.eye(len(rows), device=rows.device, dtype=rows.dtype)
    same = targets.flatten(1)[:, 0] if targets.dim() > 1 else targets
    alike = (same[:, None] == same[None, :]).to(rows.dtype)
    return -(scores.log_softmax(-1) * alike).mean() + 0.1 * rows.square().mean()


def focal(outputs: Any, targets: Tensor) -> Tensor:
    logits, wanted = flat(logits_of(outputs), targets)
    each = functional.cross_entropy(logits, wanted, reduction="none")
    return ((1 - torch.exp(-each)) ** 2 * each).mean()


def row_mean(outputs: Any, targets: Tensor) -> Tensor:
    """A mean over rows of means over positions, with ignored targets: not a mean over targets."""
    logits = logits_of(outputs)
    each = functional.cross_entropy(
        *flat(logits, targets), reduction="none", ignore_index=-100
    ).view(len(logits), -1)
    valid = (targets != -100).view(len(logits), -1)
    return (each.sum(1) / valid.sum(1).clamp(min=1)).mean()


def regression(kind: str, reduction: str) -> Function:
    function = {
        "mse": functional.mse_loss,
        "l1": functional.l1_loss,
        "smooth_l1": functional.smooth_l1_loss,
        "huber": functional.huber_loss,
    }[kind]
    return lambda outputs, targets: function(logits_of(outputs), targets, reduction=reduction)


def penalised(loss: Function, module: nn.Module, strength: float) -> Function:
    """The loss and a penalty over the module's parameters."""

    def with_penalty(outputs: Any, targets: Any) -> Tensor:
        trained = [p for p in module.parameters() if p.requires_grad]
        return loss(outputs, targets) + strength * sum(p.square().sum() for p in trained)

    return with_penalty


def make_loss(spec: dict[str, Any], module: nn.Module, classes: int) -> Function:
    """The loss as a function, whatever it is called to stepladder."""
    kind = spec["type"]
    if kind in ("cross_entropy", "weighted", "own"):
        made: Function = CrossEntropy(spec, classes)
    elif kind == "squared_error":
        made = regression("mse", "mean")
    elif kind == "temperature":
        made = Temperature()
    elif kind == "masked_mean":
        made = masked_mean(spec.get("ignore_index", -100))
    elif kind in ("contrastive", "focal", "row_mean"):
        made = {"contrastive": contrastive, "focal": focal, "row_mean": row_mean}[kind]
    else:
        made = regression(kind, spec.get("reduction", "mean"))
    dtype = next(module.parameters()).dtype
    if isinstance(made, nn.Module):
        made = made.to(dtype)
    if spec.get("penalty"):
        made = penalised(made, module, spec["penalty"])
    return made


def is_class_loss(spec: dict[str, Any]) -> bool:
    return spec["type"] not in ("squared_error", "mse", "l1", "smooth_l1", "huber")
