"""What a step leaves on the device, and the report that is read from it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from stepladder.data import Batch
from stepladder.record import Report
from stepladder.train.optimizer.gradient_norm import Norms
from stepladder.world import World, peak_memory_bytes

from .step_clock import Clock


@dataclass(frozen=True, slots=True)
class Applied:
    """What an update went by."""

    norms: Norms
    lr: float
    scale: torch.Tensor | None  # of the loss; None where there is no scaling


@dataclass(frozen=True, slots=True)
class Taken:
    """What a step leaves behind on the device until its report is read."""

    step: int
    batch: Batch
    loss: torch.Tensor
    tokens: int | torch.Tensor
    norms: Norms
    lr: float
    scale: torch.Tensor | None
    fullest: torch.Tensor | None  # the largest peak memory of any rank; None: there is one rank
    terms: Mapping[str, torch.Tensor]  # of the loss
    experts: Callable[[], Mapping[str, Any]] | None = None  # a report's numbers of mixtures


def read_report(taken: Taken, look: Callable[[], None], clock: Clock, world: World) -> Report:
    """The step's numbers, without rates of FLOPs. Waits for the device.

    Args:
        look: sees how the steps up to this one went, which may raise.
    """
    loss, norm = taken.loss.item(), taken.norms.whole.item()
    scale = None if taken.scale is None else taken.scale.item()
    look()
    seconds, waited = clock.read(taken.step)
    tokens = int(taken.tokens)
    memory = peak_memory_bytes(world.device)
    return Report(
        step=taken.step,
        loss=loss,
        grad_norm=norm / (scale or 1.0),
        lr=taken.lr,
        tokens=tokens,
        seconds=seconds,
        memory_bytes=memory if taken.fullest is None else max(memory, int(taken.fullest)),
        tokens_per_second=tokens / seconds,
        loss_scale=scale,
        skipped=not math.isfinite(norm + loss),
        length=longest(taken.batch),
        data_seconds=waited,
        rank_memory_bytes=memory,
        unit=unit_of(taken.batch, tokens),
        terms={name: term.item() for name, term in taken.terms.items()},
        **(taken.experts() if taken.experts else {}),
    )


def longest(batch: Batch) -> int:
    """Tokens of a row, where rows are sequences of whole numbers."""
    first = batch.tensors()[0]
    return first.shape[1] if first.dim() == 2 and not first.is_floating_point() else 0


def unit_of(batch: Batch, targets: int) -> str:
    """What so many targets of a global batch are: its samples, their tokens, or others."""
    if targets <= batch.size:
        return "samples"
    return "tokens" if longest(batch) else "targets"
