"""Watches a run for memory leaks, retained autograd graphs and long sequences."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from stepladder.measure import measure_fragmentation
from stepladder.measure.leaks import LeakWatch, LengthWatch
from stepladder.record import Report
from stepladder.trace import find_retained_graphs
from stepladder.world.machine.process_memory import memory_bytes_in_use


@dataclass
class MemoryWatch:
    """Takes reports and gives a sentence for each thing it finds."""

    device: torch.device
    leaks: LeakWatch = field(default_factory=lambda: LeakWatch(warmup=3, length=2))  # in reports
    lengths: LengthWatch = field(default_factory=LengthWatch)
    seen: set[int] = field(default_factory=set)  # lengths: a run of one length needs no report
    leaked: bool = False
    apart_seconds: float = 0.2  # between readings of memory: a leak shows as well in fewer
    read: float = field(default=float("-inf"), init=False)  # when it was read last

    def add(self, report: Report) -> Iterator[str]:
        """Sentences about what this report shows; of a leak only once."""
        if report.length:
            self.seen.add(report.length)
            self.lengths.add(report.step, report.length, report.memory_bytes)
        now = time.monotonic()
        if now < self.read + self.apart_seconds:
            return
        self.read = now
        leak = self.leaks.add(report.step, memory_bytes_in_use(self.device))
        if leak and not self.leaked:
            self.leaked = True
            yield str(leak)
            if graphs := find_retained_graphs():
                yield str(graphs)

    def summary(self) -> dict[str, str]:
        """Lines for the end of the run: the longest sequence, the allocator's fragmentation."""
        lines = {"lengths": str(self.lengths.longest)} if len(self.seen) > 1 else {}
        fragments = measure_fragmentation(self.device)
        return {**lines, "fragmentation": str(fragments)} if fragments else lines
