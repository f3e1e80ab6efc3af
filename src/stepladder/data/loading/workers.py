"""How many workers prefetch batches, and whether they are threads or processes.

Threads by default. Token files and arrays are memory copies, so one thread keeps up with the step;
image decoding releases the GIL, so several threads help. Threads share the random generators with
the step, so a source that may draw random numbers, such as a `Dataset` with its own `__getitem__`,
is never read by threads: a number of workers means forked processes for it, and 'auto' means such
processes beside a GPU and the step's own thread on a CPU, where they would compete with the step.

'N processes' spawns them, also where forking is not possible: the source must then pickle and the
script needs `if __name__ == "__main__"`.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Any

import torch

from stepladder.errors import DataError

from .sample_seeds import may_draw

FORKS = sys.platform == "linux"  # macOS has fork, and libraries there that do not survive it
MAX_AUTO_WORKERS = 4
EXAMPLE = "Use 'auto', a number of threads (0 reads in the step itself), or '4 processes'."


@dataclass(frozen=True, slots=True)
class Workers:
    """The number of prefetch workers, and whether each is a process."""

    count: int
    processes: bool = False
    forked: bool = False  # processes that begin as copies of this one, so nothing need pickle

    def __post_init__(self) -> None:
        if self.count < 0 or (self.processes and self.count == 0):
            raise DataError("workers", f"{self.count} is not a number of workers", EXAMPLE)

    @classmethod
    def parse(
        cls, wanted: int | str, source: Any, device: torch.device | str | None = None
    ) -> Workers:
        """Parse 'auto', a count, '3 threads' or '3 processes'; 'auto' depends on the source."""
        draws = may_draw(source)
        if wanted == "auto" and draws:
            beside = device is not None and torch.device(device).type == "cuda"
            return cls(_several(), processes=True, forked=True) if beside and FORKS else cls(0)
        if wanted == "auto":
            return cls(_auto_count(source))
        count, _, kind = str(wanted).partition(" ")
        if not count.lstrip("-").isdigit() or kind not in ("", "threads", "processes"):
            raise DataError("workers", f"'{wanted}' is not a number of workers", EXAMPLE)
        if kind != "processes" and draws and int(count) > 0:
            return cls(int(count), processes=True, forked=FORKS)
        return cls(int(count), processes=kind == "processes")


def _auto_count(source: Any) -> int:
    if not getattr(source, "parallel", False) or hasattr(source, "fetch"):
        return 1
    return _several()


def _several() -> int:
    return max(1, min(MAX_AUTO_WORKERS, os.cpu_count() or 1))
