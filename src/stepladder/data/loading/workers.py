"""How many workers prefetch batches, and whether they are threads or processes.

Threads by default. Token files and arrays are memory copies, so one thread keeps up with the step;
image decoding releases the GIL, so several threads help; a foreign `Dataset` gets one thread, since
it may not be thread-safe. Processes are for samples computed in Python, and only on request: they
are spawned, so the source must pickle and the script needs `if __name__ == "__main__"`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from stepladder.errors import DataError

MAX_AUTO_WORKERS = 4
EXAMPLE = "Use 'auto', a number of threads (0 reads in the step itself), or '4 processes'."


@dataclass(frozen=True, slots=True)
class Workers:
    """The number of prefetch workers, and whether each is a process."""

    count: int
    processes: bool = False

    def __post_init__(self) -> None:
        if self.count < 0 or (self.processes and self.count == 0):
            raise DataError("workers", f"{self.count} is not a number of workers", EXAMPLE)

    @classmethod
    def parse(cls, wanted: int | str, source: Any) -> Workers:
        """Parse 'auto', a count, '3 threads' or '3 processes'; 'auto' depends on the source."""
        if wanted == "auto":
            return cls(_auto_count(source))
        count, _, kind = str(wanted).partition(" ")
        if not count.lstrip("-").isdigit() or kind not in ("", "threads", "processes"):
            raise DataError("workers", f"'{wanted}' is not a number of workers", EXAMPLE)
        return cls(int(count), processes=kind == "processes")


def _auto_count(source: Any) -> int:
    if not getattr(source, "parallel", False) or hasattr(source, "fetch"):
        return 1
    return max(1, min(MAX_AUTO_WORKERS, os.cpu_count() or 1))
