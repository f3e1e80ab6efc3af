"""Loss spikes: a loss that jumps, judged against the noise of the run's own recent losses.

A loss counts as a spike where it lies further above the median of the last losses than noise ever
brings it: so many median deviations, and by a share of the loss itself, so that a run with hardly
any noise is not stopped by a little.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from dataclasses import dataclass, field

WINDOW = 64  # losses that say what is usual
ENOUGH = 16  # of them before anything is called unusual
DEVIATIONS = 12.0  # a normal loss passes 12 median deviations (8 standard ones) once in 10^15
SHARE = 0.2  # of the median, at least


@dataclass(slots=True)
class SpikeWatch:
    losses: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))

    def see(self, loss: float) -> str | None:
        """Why this loss is a spike; None where it is not, and it then counts as usual."""
        if len(self.losses) >= ENOUGH:
            middle = statistics.median(self.losses)
            spread = statistics.median(abs(one - middle) for one in self.losses)
            limit = middle + max(DEVIATIONS * spread, SHARE * abs(middle))
            if not loss <= limit:  # a loss that is not a number is one too
                return f"loss {loss:.4g}, and the last {len(self.losses)} were about {middle:.4g}"
        if math.isfinite(loss):
            self.losses.append(loss)
        return None

    def forget(self) -> None:
        self.losses.clear()
