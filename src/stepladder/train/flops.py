"""Arithmetic per step, counted once for each shape of batch, and its share of the device's peak."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import nn

from stepladder.data import Batch
from stepladder.model import count_flops

Shape = tuple[tuple[int, ...], ...]
REMEMBERED = 16  # shapes; ragged batches beyond that are counted by the nearest in size


@dataclass(slots=True)
class FlopRate:
    """Model FLOPs a second, as the field counts them: recomputation not included."""

    peak: float | None  # of the device in the plan's compute type; None: unknown
    _counted: dict[Shape, float | None] = field(default_factory=dict)

    def per_second(self, module: nn.Module, batch: Batch, seconds: float) -> float | None:
        """The rate at which this batch's arithmetic was done on this rank."""
        if seconds <= 0:
            return None
        shape = tuple(tuple(tensor.shape) for tensor in batch.tensors())
        if shape not in self._counted and len(self._counted) >= REMEMBERED:
            shape = min(self._counted, key=lambda known: abs(volume(known) - volume(shape)))
        if shape not in self._counted:
            self._counted[shape] = self.count(module, batch)
        counted = self._counted[shape]
        return None if counted is None else counted / seconds

    def count(self, module: nn.Module, batch: Batch) -> float | None:
        try:
            return float(count_flops(module, batch.inputs).model)
        except Exception:  # a foreign forward may do anything to a stand-in; training goes on
            return None

    def share(self, flops_per_second: float | None) -> float | None:
        """Model FLOPs utilisation; None where the device or the count is unknown."""
        if self.peak is None or flops_per_second is None:
            return None
        return flops_per_second / self.peak


def volume(shape: Shape) -> int:
    return sum(shape[0]) if shape else 0
