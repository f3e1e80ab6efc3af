"""Memory leaks: growth from step to step, told apart from longer sequences and fragmentation.

A leak raises the floor. Steps are grouped into windows and each window remembers its lowest
reading; when every window stands higher than the one before, memory is lost. Peaks, sawtooths and
noise move the ceiling and leave the floor, so they raise no alarm. Windows double in length as
the run goes on, so the whole run is looked at with a handful of numbers.

Two kinds of growth are not leaks and have their own reports: longer sequences than seen before
(`LengthWatch`), and free memory in pieces too small to use (`Fragmentation`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch

MIB, GIB = 2**20, 2**30
FEWEST = 8  # windows; eight in rising order by chance: once in 40,000


@dataclass(frozen=True, slots=True)
class Leak:
    first_step: int
    last_step: int
    grown_bytes: int
    floor_bytes: int  # the lowest reading lately

    @property
    def bytes_per_step(self) -> float:
        return self.grown_bytes / (self.last_step - self.first_step)

    def steps_left(self, limit_bytes: int) -> int:
        """Steps until the floor alone fills the device."""
        return max(int((limit_bytes - self.floor_bytes) / self.bytes_per_step), 0)

    def __str__(self) -> str:
        return (
            f"memory: the floor rose by {self.grown_bytes / MIB:.1f} MiB from step "
            f"{self.first_step} to {self.last_step} and never fell "
            f"({self.bytes_per_step / MIB:.3f} MiB a step). Something is kept from step to step."
        )


@dataclass(slots=True)
class Window:
    step: int  # of the lowest reading
    floor_bytes: int
    count: int = 1

    def join(self, other: Window) -> Window:
        low = min(self, other, key=lambda window: window.floor_bytes)
        return Window(low.step, low.floor_bytes, self.count + other.count)


@dataclass(slots=True)
class LeakWatch:
    """Fed one reading a step; answers with the leak once there is one."""

    warmup: int = 10  # first steps, in which caches fill and the optimizer makes its state
    length: int = 16  # steps in a window, to begin with
    smallest_bytes: int = MIB  # growth below this is not reported
    seen: int = 0
    windows: list[Window] = field(default_factory=list)

    def add(self, step: int, num_bytes: int) -> Leak | None:
        self.seen += 1
        if self.seen <= self.warmup:
            return None
        reading = Window(step, num_bytes)
        if self.windows and self.windows[-1].count < self.length:
            self.windows[-1] = self.windows[-1].join(reading)
        else:
            self._open(reading)
        return self.leak()

    def _open(self, reading: Window) -> None:
        if len(self.windows) == 2 * FEWEST:
            pairs = zip(self.windows[::2], self.windows[1::2])
            self.windows = [first.join(second) for first, second in pairs]
            self.length *= 2
        self.windows.append(reading)

    def leak(self) -> Leak | None:
        """The growth so far, if every whole window stands above the one before."""
        whole = [window for window in self.windows if window.count == self.length]
        if len(whole) < FEWEST:
            return None
        floors = [window.floor_bytes for window in whole]
        if any(later <= earlier for earlier, later in pairwise(floors)):
            return None
        grown = floors[-1] - floors[0]
        if grown < self.smallest_bytes:
            return None
        return Leak(whole[0].step, whole[-1].step, grown, floors[-1])


@dataclass(frozen=True, slots=True)
class LongestSequence:
    """The longest sequence so far, and how much of memory's growth came with a new longest."""

    length: int
    step: int
    share: float | None  # None: memory has not grown

    def __str__(self) -> str:
        seen = f"longest sequence: {self.length} at step {self.step}"
        if self.share is None:
            return f"{seen}; memory has not grown since the first step."
        return f"{seen}; {self.share:.0%} of memory's growth came with a new longest sequence."


class LengthWatch:
    """Fed the longest sequence and the peak of each step."""

    def __init__(self) -> None:
        self.length = self.step = self.peak_bytes = 0
        self.grown_bytes = self.grown_with_length = 0

    def add(self, step: int, length: int, peak_bytes: int) -> None:
        first, longer = self.length == 0, length > self.length
        growth = 0 if first else max(peak_bytes - self.peak_bytes, 0)
        self.grown_bytes += growth
        self.peak_bytes = max(self.peak_bytes, peak_bytes)
        if longer:
            self.grown_with_length += growth
            self.length, self.step = length, step

    @property
    def longest(self) -> LongestSequence:
        share = self.grown_with_length / self.grown_bytes if self.grown_bytes else None
        return LongestSequence(self.length, self.step, share)


@dataclass(frozen=True, slots=True)
class Fragmentation:
    """What the allocator holds and nobody uses."""

    reserved_bytes: int
    allocated_bytes: int
    largest_free_bytes: int

    @property
    def idle_bytes(self) -> int:
        return self.reserved_bytes - self.allocated_bytes

    def __str__(self) -> str:
        idle = (
            f"{self.idle_bytes / GIB:.2f} GiB of {self.reserved_bytes / GIB:.2f} reserved are idle"
        )
        pieces = f"the largest piece is {self.largest_free_bytes / GIB:.2f} GiB"
        if self.largest_free_bytes * 2 >= self.idle_bytes:
            return f"{idle}; {pieces}."
        way_out = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True lets pieces join."
        return f"{idle} and scattered: {pieces}. {way_out}"


def measure_fragmentation(device: torch.device) -> Fragmentation | None:
    """The allocator's idle memory on a GPU; none on a CPU, whose allocator keeps none."""
    if device.type != "cuda":
        return None
    segments = torch.cuda.memory_snapshot()
    mine = [segment for segment in segments if segment["device"] == (device.index or 0)]
    return fragmentation_of(mine)


def fragmentation_of(segments: Iterable[Mapping[str, Any]]) -> Fragmentation:
    """The idle memory in a snapshot's segments."""
    reserved, free = 0, [0]
    for segment in segments:
        reserved += segment["total_size"]
        free += [b["size"] for b in segment["blocks"] if b["state"] == "inactive"]
    return Fragmentation(reserved, reserved - sum(free), max(free))
