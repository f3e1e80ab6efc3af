"""Seconds of one call on a device: by CUDA events on a GPU, by the clock on a processor.

The fastest of several runs counts: what else the machine does only ever slows one down.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

Work = Callable[[], object]

LEAST_SECONDS = 0.01  # between two readings of the clock
MOST_CALLS = 1000


def fastest_seconds(work: Work, device: torch.device, budget: float) -> float:
    """Seconds of a call in the fastest of at least three runs within the budget."""
    run = cuda_seconds if device.type == "cuda" else clock_seconds
    run(work, 1)  # which loads kernels and fills caches
    once = run(work, 1)
    calls = min(max(1, round(LEAST_SECONDS / max(once, 1e-7))), MOST_CALLS)
    found = [run(work, calls) for _ in range(3)]
    began = time.monotonic()
    while time.monotonic() - began < budget:
        found.append(run(work, calls))
    return min(found)


def clock_seconds(work: Work, calls: int) -> float:
    began = time.perf_counter()
    for _ in range(calls):
        work()
    return (time.perf_counter() - began) / calls


def cuda_seconds(work: Work, calls: int) -> float:
    """By events in the GPU's own queue: what the host takes to ask does not count."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(calls):
        work()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3 / calls
