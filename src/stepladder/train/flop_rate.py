"""Arithmetic per step, counted once for each shape of batch, and its share of the device's peak.

Two rates, as the field has them: *model* FLOPs are what the mathematics needs, so recomputing does
not raise that utilisation (MFU); *hardware* FLOPs are what the device did, recomputation included
(HFU).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import nn

from stepladder.data import Batch
from stepladder.model import count_flops
from stepladder.model.tracing.count_flops import Flops
from stepladder.train.checkpointing.rng_state import untouched

Shape = tuple[tuple[int, ...], ...]
HOST = torch.device("cpu")  # what is counted runs on stand-ins, and draws from no other device
REMEMBERED = 16  # shapes; ragged batches beyond that are counted by the nearest in size


@dataclass(frozen=True, slots=True)
class Rates:
    """FLOPs a second on this rank and their shares of the peak; None where one is not known."""

    model: float | None = None
    hardware: float | None = None
    peak: float | None = None

    @property
    def mfu(self) -> float | None:
        return None if self.model is None or self.peak is None else self.model / self.peak

    @property
    def hfu(self) -> float | None:
        return None if self.hardware is None or self.peak is None else self.hardware / self.peak


@dataclass(slots=True)
class FlopRate:
    """Counts a batch's arithmetic the first time its shape is seen."""

    module: nn.Module  # as it was before any rung: what is counted is the mathematics
    peak: float | None  # of the device in the plan's compute type; None: unknown
    sharing: int = 1  # ranks that share the work on one batch
    again: Collection[str] = ()  # blocks that run twice: their forward is computed again whole
    _counted: dict[Shape, Flops | None] = field(default_factory=dict)

    def over(self, seconds: float, batch: Batch) -> Rates:
        """The rates at which this rank did its part of the batch's arithmetic."""
        counted = self._look_up(batch)
        if counted is None or seconds <= 0:
            return Rates(peak=self.peak)
        spent = seconds * self.sharing
        return Rates(counted.model / spent, counted.hardware / spent, self.peak)

    def later(self, batch: Batch) -> Callable[[float], Rates]:
        """`over` for this batch, to be called with the seconds; keeps none of its memory."""
        return partial(self.over, batch=batch.to("meta"))

    def _look_up(self, batch: Batch) -> Flops | None:
        shape = tuple(tuple(tensor.shape) for tensor in batch.tensors())
        if shape not in self._counted and len(self._counted) >= REMEMBERED:
            shape = min(self._counted, key=lambda known: abs(volume(known) - volume(shape)))
        if shape not in self._counted:
            self._counted[shape] = self._count(batch)
        return self._counted[shape]

    def _count(self, batch: Batch) -> Flops | None:
        try:
            with untouched(HOST):  # a resumed run counts at another step than the one it follows
                once = count_flops(self.module, batch.inputs)
        except Exception:  # a foreign forward may do anything to a stand-in; training goes on
            return None
        if once.uncounted:  # a rate without them would be too low
            return None
        return replace(once, recompute=sum(once.parts.get(name, 0) for name in self.again))


def volume(shape: Shape) -> int:
    return sum(shape[0]) if shape else 0
