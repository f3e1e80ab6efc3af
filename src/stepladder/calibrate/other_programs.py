"""What other programs take of this machine's processors while something is measured."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field

import psutil

WORKING = ("user", "nice", "system", "irq", "softirq", "steal")  # not idle, nor waiting for a disk
LEAST_SECONDS = 0.5  # below which ticks of 10 ms say too little
LEAST_CORES = 0.25  # what a machine does for itself is less
FULL = 0.9  # of all cores, from which one program waits for another


def worked_seconds() -> float:
    """Of all cores together, since the machine started."""
    times = psutil.cpu_times()
    return sum(getattr(times, name, 0.0) for name in WORKING)


@dataclass(frozen=True, slots=True)
class ProcessorTime:
    """Seconds of work by everybody, and by this process and those that it waited for."""

    clock: float = field(default_factory=time.monotonic)
    everybody: float = field(default_factory=worked_seconds)
    own: float = field(default_factory=lambda: sum(os.times()[:4]))

    def others_since(self) -> str:
        """How much others have worked since then, where that was in the way; "" if it was not."""
        now, cores = ProcessorTime(), os.cpu_count() or 1
        spent, whole = now.clock - self.clock, now.everybody - self.everybody
        if spent < LEAST_SECONDS or whole < FULL * cores * spent:
            return ""
        others = (whole - (now.own - self.own)) / spent
        if others < LEAST_CORES:
            return ""
        return f"other programs used {others:.1f} of {cores} cores meanwhile"
