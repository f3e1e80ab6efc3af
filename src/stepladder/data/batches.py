"""The global batches of a run: each step's positions in the sample order, and this rank's rows."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from stepladder.data.loading.prefetch import Prefetcher
from stepladder.data.loading.read_samples import ReadPolicy, SampleReader
from stepladder.data.loading.sample_seeds import SampleSeeds, generators_restored, may_draw
from stepladder.data.loading.workers import Workers
from stepladder.errors import DataError, require_type

from .batch import Batch, iter_tensors
from .collate import check_longest, is_tokens, shorten, stack
from .length_schedule import LengthSchedule
from .sample_order import Integers
from .source import Source, as_source, order_of

Share = Callable[[int, int], Integers]


def batches(
    source: Any,
    *,
    size: int,
    seed: int = 0,
    start: int = 0,
    stop: int | None = None,
    shuffle: bool = True,
    share: Share | None = None,
    lengths: str | Callable[[int], int] | None = None,
    longest: int | None = None,
    workers: int | str = "auto",
    device: torch.device | str | None = None,
    reading: ReadPolicy | None = None,
) -> Prefetcher:
    """Iterate over batches of `size` samples from position `start`, the same for any rank count.

    Args:
        start: the position of the first sample; a resumed run passes its last position + size.
        stop: the position to end before; without it the epochs never end.
        share: which of a global batch's rows this rank loads, from the step and the batch's size.
        lengths: tokens used of each window by step, such as "128@0,512@200" (position // size).
        reading: retries, skipping and padding; `longest` overrides its value.
    """
    source = as_source(source)
    policy = policy_of(reading, longest)
    plan = Positions(size, start, stop)
    make = BatchMaker(
        SampleReader(source, policy),
        order_of(source, seed, shuffle),
        plan,
        share,
        schedule_of(lengths, source),
        SampleSeeds(seed) if may_draw(source) else None,
    )
    return Prefetcher(
        make,
        plan.steps(),
        workers=Workers.parse(workers, source, device),
        device=device,
        patience_seconds=policy.patience_seconds,
    )


def load_batch(
    source: Source, order: Any, positions: Integers, *, reading: ReadPolicy | None = None
) -> Batch:
    """Read the samples at these positions of a run as one batch, in this thread."""
    reader = SampleReader(source, reading or ReadPolicy())
    seeds = SampleSeeds(0).at(positions) if may_draw(source) else None
    with generators_restored() if seeds else nullcontext():
        return _load(
            reader,
            order.indices(positions),
            position=int(positions[0]),
            size=len(positions),
            seeds=seeds,
        )


@dataclass(frozen=True, slots=True)
class Positions:
    """The positions of each step's global batch in the run."""

    size: int
    start: int = 0
    stop: int | None = None

    def __post_init__(self) -> None:
        if self.size < 1:
            raise DataError("size", f"{self.size} is not a number of samples", "Use at least 1.")
        if self.start < 0:
            raise DataError("start", f"{self.start} is before the first sample", "Use 0 or more.")

    def steps(self) -> range:
        """0, 1, 2 …, counted from this start."""
        if self.stop is None:
            return range(sys.maxsize)
        return range(-(-max(0, self.stop - self.start) // self.size))

    def of(self, step: int) -> tuple[int, int]:
        """The first position of a step, and how many samples it holds."""
        first = self.start + step * self.size
        return first, self.size if self.stop is None else min(self.size, self.stop - first)


@dataclass(frozen=True, slots=True)
class BatchMaker:
    """Makes the batch of a step; prefetch workers call it in any thread or process."""

    reader: SampleReader
    order: Any
    positions: Positions
    share: Share | None = None
    lengths: Callable[[int], int] | None = None
    seeds: SampleSeeds | None = None  # None: reading a sample draws nothing

    def __call__(self, count: int) -> Batch:
        first, size = self.positions.of(count)
        step = first // self.positions.size
        offsets = offsets_of(self.share, step, size)
        idle = not len(offsets)  # a last batch of fewer rows than ranks: another's row stands in
        mine = first + (np.zeros(1, np.int64) if idle else offsets)
        length = self.lengths(step) if self.lengths else None
        seeds = self.seeds.at(mine) if self.seeds else None
        with generators_restored() if seeds else nullcontext():
            return _load(
                self.reader,
                self.order.indices(mine),
                position=first,
                size=size,
                length=length,
                seeds=seeds,
                idle=idle,
            )

    def reading_now(self) -> str:
        """The samples being read at this moment, for the message of a timeout."""
        return ", ".join(
            self.reader.name(index) for index in self.reader.reading_now.copy().values()
        )


def _load(
    reader: SampleReader,
    indices: Integers,
    *,
    position: int,
    size: int,
    length: int | None = None,
    seeds: list[int] | None = None,
    idle: bool = False,
) -> Batch:
    skipped: tuple[str, ...] = ()
    samples = reader.fetch(indices, seeds[0] if seeds else None)
    pad = None
    if samples is None:
        read = [
            reader.read(index, seeds[row] if seeds else None)
            for row, index in enumerate(indices.tolist())
        ]
        names = [reader.name(index) for index in indices.tolist()]
        samples = stack([sample for sample, _ in read], names, reader.policy)
        skipped = tuple(sentence for _, sentence in read if sentence)
        pad = reader.policy.pad if any(map(is_tokens, iter_tensors(samples))) else None
    samples = check_longest(samples, reader.policy)
    if length is not None:
        samples = shorten(samples, length)
    made = Batch.of(samples, position=position, size=size, skipped=skipped, idle=idle)
    return dataclasses.replace(made, pad=pad)


def offsets_of(share: Share | None, step: int, size: int) -> Integers:
    """This rank's rows of a global batch of `size`, checked."""
    if share is None:
        return np.arange(size)
    offsets = np.asarray(share(step, size), dtype=np.int64)
    if len(offsets) and (offsets.min() < 0 or offsets.max() >= size):
        raise DataError(
            "share",
            f"offsets {offsets.tolist()[:8]} of a batch of {size} at step {step}",
            f"Give each rank some of 0 to {size - 1}.",
        )
    return offsets


def policy_of(reading: ReadPolicy | None, longest: int | None) -> ReadPolicy:
    """The policy that was given, with the longest sample that was given beside it."""
    if reading is not None:
        require_type(
            "reading", reading, ReadPolicy, "Give a ReadPolicy, such as its default, None."
        )
    policy = reading or ReadPolicy()
    return policy if longest is None else dataclasses.replace(policy, longest=longest)


def schedule_of(
    lengths: str | Callable[[int], int] | None, source: Any
) -> Callable[[int], int] | None:
    """The length schedule as a function of the step, checked against the source's windows."""
    if lengths is None or callable(lengths):
        return lengths
    require_type("lengths", lengths, str, "Write '128@0,512@200', or give a function of the step.")
    schedule, window = LengthSchedule.parse(lengths), getattr(source, "length", None)
    if window is None:
        raise DataError(
            "lengths", f"{type(source).__name__} has no windows to shorten", "Leave it out."
        )
    if schedule.longest > window:
        raise DataError(
            "lengths",
            f"{schedule.longest} tokens are asked of windows of {window}",
            f"Use at most {window}, or open the source with length={schedule.longest}.",
        )
    return schedule.at
