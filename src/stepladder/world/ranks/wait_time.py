"""How long this rank waits for others: the time its main thread spends blocked in collectives.

What is left of a step is the rank's own time, and a rank whose own time is long is what the others
wait for. Collectives are waited for in two places. Whoever calls one from Python waits in
`Work.wait`, which is timed for as long as this is open, a microsecond a call. DDP waits inside its
reducer, in C++; its own logging says for how long communication outlasted backward.

Limits: with NCCL a wait returns at once and the device waits, so nothing is seen of it here; nor of
what DTensor and pipelines wait for.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from stepladder.seam.reducer import time_every_step, timings

NS = 1e-9


class Waiting:
    """Counts seconds blocked in collectives while it is open."""

    def __init__(self, module: nn.Module) -> None:
        """
        Args:
            module: what is called in a step: DDP's wrapper, where there is one.
        """
        self.seconds = 0.0  # in `Work.wait`, since it was opened
        self.copy = module if isinstance(module, DistributedDataParallel) else None

    def __enter__(self) -> Waiting:
        self._wait: Any = dist.Work.wait
        if self.copy is not None and self.copy.device_type == "cpu":
            # Every step; on a GPU that would add a wait for its timers, so there one in a hundred.
            time_every_step(self.copy)
        dist.Work.wait = self._timed(self._wait, threading.get_ident())  # type: ignore[method-assign]
        return self

    def __exit__(self, *error: Any) -> None:
        dist.Work.wait = self._wait  # type: ignore[method-assign]

    def reduction_seconds(self) -> float:
        """Of the latest step that DDP timed: from the end of its backward to the last gradient."""
        if self.copy is None:
            return 0.0
        found: dict[str, Any] = timings(self.copy)
        whole = found.get("backward_comm_time", 0)
        return max(whole - found.get("backward_compute_comm_overlap_time", 0), 0) * NS

    def _timed(self, wait: Any, thread: int) -> Any:
        def timed(work: Any, *args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != thread:
                return wait(work, *args, **kwargs)
            began = time.perf_counter()
            try:
                return wait(work, *args, **kwargs)
            finally:
                self.seconds += time.perf_counter() - began

        return timed
