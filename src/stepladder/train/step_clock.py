"""Time per step, and the arithmetic rate it means: what a report says of speed."""

from __future__ import annotations

import time
from dataclasses import dataclass, field


@dataclass(slots=True)
class Clock:
    """Seconds a step took, averaged over the steps since it was last read."""

    _since: float = field(default_factory=time.perf_counter)
    _step: int = 0
    _waited: float = 0.0  # for data, since last read

    def restart(self, step: int) -> None:
        self._since, self._step, self._waited = time.perf_counter(), step, 0.0

    def wait(self, seconds: float) -> None:
        """Note time spent waiting for a batch."""
        self._waited += seconds

    def read(self, step: int) -> tuple[float, float]:
        """Seconds a step, and of those waiting for data, up to and including `step`."""
        steps = max(step + 1 - self._step, 1)
        seconds = (time.perf_counter() - self._since) / steps
        waited = self._waited / steps
        self.restart(step + 1)
        return seconds, waited
