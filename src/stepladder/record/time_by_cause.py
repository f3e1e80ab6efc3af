"""Seconds of one step on the slowest rank, by cause: forecast and measured alike."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class Time:
    matrix: float = 0.0  # matrix products and convolutions
    attention: float = 0.0
    memory_bound: float = 0.0  # element-wise work, norms, losses: limited by bandwidth
    communication: float = 0.0  # the part nothing hides
    bubble: float = 0.0  # pipeline stages waiting for their turn
    optimizer: float = 0.0  # the update, clipping included
    data: float = 0.0  # waiting for the next batch
    host: float = 0.0  # launching work slower than the device does it

    @property
    def step_seconds(self) -> float:
        return sum(self.by_cause().values())

    def by_cause(self) -> dict[str, float]:
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def times(self, factor: float) -> Time:
        return Time(**{cause: spent * factor for cause, spent in self.by_cause().items()})

    def __sub__(self, other: Time) -> dict[str, float]:
        return {cause: spent - other.by_cause()[cause] for cause, spent in self.by_cause().items()}
