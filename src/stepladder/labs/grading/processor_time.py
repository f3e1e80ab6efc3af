"""Limits that a busy machine does not change: processor time, and standing still.

Processor time of a process, of those that it started and of those that have ended. What waits for
something that never comes uses none, however long it waits; what works always uses some, however
little of the machine it is given.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

import psutil

LOOK_SECONDS = 0.25  # between two looks
IDLE_SECONDS = 90.0  # longer than ranks wait for each other, who then say which of them is missing
STILL = 0.5  # processor seconds: less than this in that time is waiting


def spent_seconds(pid: int) -> dict[int, float]:
    """Processor seconds of a process and of each that it started."""
    spent: dict[int, float] = {}
    with suppress(psutil.Error):
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            with suppress(psutil.Error):
                spent[process.pid] = sum(process.cpu_times()[:4])  # and of children that ended
    return spent


class Budget:
    """What a process may still spend."""

    def __init__(self, pid: int, limit_seconds: float) -> None:
        self.pid = pid
        self.begin(limit_seconds)

    def begin(self, limit_seconds: float, idle_seconds: float = IDLE_SECONDS) -> None:
        """Count from here."""
        self.limit_seconds, self.idle_seconds = limit_seconds, idle_seconds
        self.spent = spent_seconds(self.pid)
        self.begun = self.seen = sum(self.spent.values())
        self.moved_at, self.busiest = time.monotonic(), self.pid

    def exceeded(self) -> str:
        """How the processes went beyond it; nothing while they have not."""
        before, self.spent = self.spent, spent_seconds(self.pid)
        grown = {pid: seconds - before.get(pid, 0.0) for pid, seconds in self.spent.items()}
        self.busiest = max(grown, key=lambda pid: grown[pid], default=self.pid)
        now = sum(self.spent.values())
        if abs(now - self.seen) > STILL:  # less than before: a process ended unseen
            self.seen, self.moved_at = now, time.monotonic()
        if now - self.begun > self.limit_seconds:
            return "over"
        return "idle" if time.monotonic() - self.moved_at > self.idle_seconds else ""

    def wait(self, ready: Callable[[float], bool]) -> str:
        """Wait until `ready(seconds)` says so or the budget is exceeded; how it was."""
        while not ready(LOOK_SECONDS):
            if reason := self.exceeded():
                return reason
        return ""
