"""Time that this rank's main thread spends blocked in collectives, waiting for other ranks.

The rest of a step is the rank's own time, and a rank with a long own time is a straggler. A rank
waits in two places. Collectives called from Python wait in `Work.wait`, which is timed while this
is open, at a microsecond a call. DDP waits inside its C++ reducer; its logging reports by how much
communication outlasted the backward pass.

Limits: with NCCL a wait returns at once and the device waits, which is not seen here; neither are
the waits of DTensor and of pipelines.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from stepladder.seam.process_groups import time_every_step, timings

NS = 1e-9


class CollectiveWaitTimer:
    """Adds up the seconds blocked in collectives while it is open."""

    def __init__(self, module: nn.Module) -> None:
        """
        Args:
            module: the module that a step calls: DDP's wrapper if there is one.
        """
        self.seconds = 0.0  # in `Work.wait`, since it was opened
        self.ddp = module if isinstance(module, DistributedDataParallel) else None

    def __enter__(self) -> CollectiveWaitTimer:
        self._wait: Any = dist.Work.wait
        if self.ddp is not None and self.ddp.device_type == "cpu":
            # Time every step; on a GPU that would synchronise, so there DDP times one in a hundred.
            time_every_step(self.ddp)
        dist.Work.wait = self._timed(self._wait, threading.get_ident())  # type: ignore[method-assign]
        return self

    def __exit__(self, *error: Any) -> None:
        dist.Work.wait = self._wait  # type: ignore[method-assign]

    def reduction_seconds(self) -> float:
        """In the latest step that DDP timed: from the end of backward to the last gradient."""
        if self.ddp is None:
            return 0.0
        found: dict[str, Any] = timings(self.ddp)
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
