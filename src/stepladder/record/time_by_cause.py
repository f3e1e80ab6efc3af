"""Step time of the slowest rank in seconds by cause, forecast or measured."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class Time:
    """Seconds of one step, by cause; their sum is the step time."""

    matrix: float = 0.0  # matmuls and convolutions
    attention: float = 0.0
    memory_bound: float = 0.0  # element-wise work, norms, losses: limited by bandwidth
    communication: float = 0.0  # exposed, not overlapped
    bubble: float = 0.0  # pipeline stages waiting for their turn
    optimizer: float = 0.0  # the update, clipping included
    data: float = 0.0  # waiting for the next batch
    host: float = 0.0  # waiting for the host to launch work

    @property
    def step_seconds(self) -> float:
        return sum(self.by_cause().values())

    def by_cause(self) -> dict[str, float]:
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def times(self, factor: float) -> Time:
        return Time(**{cause: spent * factor for cause, spent in self.by_cause().items()})

    def __sub__(self, other: Time) -> dict[str, float]:
        return {cause: spent - other.by_cause()[cause] for cause, spent in self.by_cause().items()}
