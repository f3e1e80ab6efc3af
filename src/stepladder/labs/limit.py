"""A rank's memory, kept below a limit: the allocation that goes beyond it fails.

Tensors are counted, not the process: torch alone takes hundreds of MiB, beside which a lesson's
model would not be seen, and the count is the same on every machine.
"""

from __future__ import annotations

import torch

from stepladder.errors import OutOfMemory
from stepladder.profiler import Ledger


class MemoryLimit(Ledger):
    """Context in which this process's tensors may take so many bytes; `peak_bytes` is their most.

    Without a number it only counts.
    """

    def __init__(self, limit_bytes: int | None = None) -> None:
        super().__init__(torch.device("cpu"))
        self.limit_bytes = limit_bytes

    def _grow(self, num_bytes: int) -> None:
        super()._grow(num_bytes)
        if self.limit_bytes is not None and num_bytes > 0 and self.live_bytes > self.limit_bytes:
            raise OutOfMemory(
                "memory",
                f"{num_bytes / 1024:.0f} KiB more make {self.live_bytes / 1024:.0f} KiB of "
                f"tensors on this rank, which may hold {self.limit_bytes / 1024:.0f}",
                "Hold less at once.",
            )
