"""Processes beside each other, each with a part of the device's memory, until a deadline."""

from __future__ import annotations

import json
import multiprocessing
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Lane:
    """Jobs of one kind: `work(job, file)` is called for each, in a process of its own."""

    name: str
    waiting: list[str]
    work: Callable[[str, Path], None]
    folder: Path
    sizes: dict[str, float]  # of each job
    room: float  # for the sizes of those that run at once
    at_once: int
    seconds: float
    running: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.waiting, self.end = list(self.waiting), time.monotonic() + self.seconds

    @property
    def active(self) -> bool:
        return bool(self.waiting or self.running) and time.monotonic() < self.end

    def start_next(self) -> None:
        """Start the first job for which there is room. Processes are forked: what is imported here
        is imported there."""
        for job in [job for job, process in self.running.items() if not process.is_alive()]:
            self.running.pop(job).join()
        used = sum(self.sizes[job] for job in self.running)
        fitting = [
            job for job in self.waiting if used + self.sizes[job] <= self.room or not self.running
        ]
        if fitting and len(self.running) < self.at_once:
            job = fitting[0]
            self.waiting.remove(job)
            fork = multiprocessing.get_context("fork")
            process = fork.Process(target=self.work, args=(job, self.folder / f"{job}.jsonl"))
            process.start()
            self.running[job] = process

    def stop(self) -> list[str]:
        """End what still runs; the jobs left undone."""
        for process in self.running.values():
            process.kill()
            process.join()
        return [*self.running, *self.waiting]


def run_side_by_side(lanes: list[Lane]) -> Iterator[tuple[str, list[str]]]:
    """Run the lanes beside each other; for each its name and the jobs it left undone."""
    while any(lane.active for lane in lanes):
        for lane in lanes:
            if lane.active:
                lane.start_next()
        time.sleep(0.05)
    for lane in lanes:
        yield lane.name, lane.stop()


def rows_in(folder: Path) -> list[dict[str, Any]]:
    """What was found so far; a line that was cut off is left out."""
    lines = [line for path in sorted(folder.glob("*.jsonl")) for line in path.open()]
    return [json.loads(line) for line in lines if line.endswith("\n")]
