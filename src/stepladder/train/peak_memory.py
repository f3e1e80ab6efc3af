"""The peak memory of the rank that needs most, which the ranks tell each other now and then.

A peak only grows, and nearly all of its growth is in the first steps. So it is exchanged in those
and then every 16th: eight bytes over groups that the step uses anyway. Reading a report is never a
collective, so one rank may read while the others do not.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from stepladder.plan.layout import AXES
from stepladder.world import World, peak_memory_bytes

FIRST_STEPS = 3  # with the optimizer's state in the second, and the allocator at rest in the third
EVERY = 16


@dataclass(slots=True)
class PeakMemory:
    """What was last exchanged."""

    steps: int = 0  # seen by this process: the same on every rank
    fullest: torch.Tensor | None = None  # still on the device; None: there is one rank

    def exchange(self, world: World) -> torch.Tensor | None:
        """The largest peak of any rank as of the last exchange, which may be due now."""
        due = self.steps < FIRST_STEPS or self.steps % EVERY == 0
        self.steps += 1
        if due and world.layout.num_ranks > 1:
            mine = torch.full(
                (), peak_memory_bytes(world.device), dtype=torch.int64, device=world.device
            )
            self.fullest = world.max(mine, *AXES)
        return self.fullest
