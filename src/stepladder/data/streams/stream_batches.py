"""The global batches of a run that reads a stream, and this rank's rows of each.

Every rank reads the whole stream and keeps its own rows, which alone are made into tensors. So the
global batches are the same on any number of ranks, and a run goes on from one place on any number.
A stream that splits itself by rank was not built on: its order would belong to one number of ranks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from stepladder.data.batch import Batch, iter_tensors
from stepladder.data.batches import Positions, Share, offsets_of, policy_of, schedule_of
from stepladder.data.collate import check_longest, is_tokens, shorten, stack
from stepladder.data.loading.prefetch import Prefetcher
from stepladder.data.loading.read_samples import ReadPolicy
from stepladder.data.loading.sample_seeds import generators_restored
from stepladder.data.loading.workers import Workers
from stepladder.errors import DataError, require_count

from .sample_hash import hash_samples
from .stream_order import BUFFER, StreamOrder
from .stream_place import StreamPlace
from .stream_samples import StreamSamples

UNORDERED = (set, frozenset, str, bytes, dict, torch.Tensor, np.ndarray, DataLoader)


@dataclass(slots=True)
class StreamBatchMaker:
    """Makes the batch of each step in turn, in one thread or process."""

    order: StreamOrder
    positions: Positions
    policy: ReadPolicy
    share: Share | None = None
    lengths: Callable[[int], int] | None = None
    from_place: StreamPlace | None = None  # until the first batch is asked for

    def __call__(self, step: int) -> Batch:
        position, size = self.positions.of(step)
        with generators_restored() if self.order.samples.seeds else nullcontext():
            if self.from_place is not None:
                self.order.seek(self.from_place)
                self.from_place = None
            before = self.order.place().count
            samples = self.order.take(size)
        if not samples:
            raise StopIteration
        notes, self.order.samples.notes = tuple(self.order.samples.notes), []
        offsets = offsets_of(self.share, step, len(samples))
        mine = offsets if len(offsets) else np.zeros(1, np.int64)
        kind = self.order.samples.kind
        names = [f"sample {before + row} of the stream ({kind})" for row in mine.tolist()]
        stacked = stack([samples[row] for row in mine.tolist()], names, self.policy)
        pad = self.policy.pad if any(map(is_tokens, iter_tensors(stacked))) else None
        stacked = check_longest(stacked, self.policy)
        if self.lengths is not None:
            stacked = shorten(stacked, self.lengths(position // self.positions.size))
        made = Batch.of(
            stacked, position=position, size=len(samples), skipped=notes, idle=not len(offsets)
        )
        number = hash_samples(samples[0], samples[-1], len(samples))
        return dataclasses.replace(made, pad=pad, place=self.order.place(), content=number)

    def reading_now(self) -> str:
        """What is being read at this moment, for the message of a timeout."""
        samples = self.order.samples
        return f"sample {samples.at.count} of the stream ({samples.kind})"


def stream_batches(
    stream: Any,
    *,
    size: int,
    seed: int = 0,
    samples: StreamSamples | None = None,
    place: StreamPlace | None = None,
    start: int = 0,
    stop: int | None = None,
    buffer: int = 0,
    share: Share | None = None,
    lengths: str | Callable[[int], int] | None = None,
    longest: int | None = None,
    workers: int | str = "auto",
    device: torch.device | str | None = None,
    reading: ReadPolicy | None = None,
) -> Prefetcher:
    """Iterate over batches of `size` samples of a stream from a place on.

    Args:
        samples: its reader, where it has one already.
        place: where an earlier reading ended; None: the stream's beginning.
        start: the run's position at the first batch.
        buffer: samples to shuffle together; 0: the stream's own order.
        share: which of a global batch's rows are this rank's, from the step and the batch's size.
    """
    check_stream(stream)
    policy = policy_of(reading, longest)
    if policy.on_error == "skip":
        problem = f"{type(stream).__name__} is a stream, and after an error it cannot go on"
        raise DataError("reading.on_error", problem, "Leave out bad samples in the stream itself.")
    plan = Positions(size, start, stop)
    order = StreamOrder(samples or StreamSamples(stream, seed), buffer, seed)
    make = StreamBatchMaker(
        order,
        plan,
        policy,
        share,
        schedule_of(lengths, stream),
        place or StreamPlace(buffer=buffer, seed=seed),
    )
    return Prefetcher(
        make,
        plan.steps(),
        workers=one_reader(workers, stream, device),
        device=device,
        patience_seconds=policy.patience_seconds,
    )


def one_reader(wanted: int | str, stream: Any, device: torch.device | str | None) -> Workers:
    """A stream is read in order, by one worker at most; a thread where nothing is drawn."""
    draws = getattr(stream, "parallel", False) is not True
    found = Workers.parse(wanted, None if draws else stream, device)
    return dataclasses.replace(found, count=min(found.count, 1))


def buffer_of(shuffle: bool | int) -> int:
    """Samples of a stream that are shuffled together; 0: in its own order."""
    if isinstance(shuffle, bool):
        return BUFFER if shuffle else 0
    require_count("shuffle", shuffle, "a number of samples to shuffle together", least=0)
    return shuffle


def is_stream(data: Any) -> bool:
    """Whether samples can be read one after another, and not by their index."""
    if isinstance(data, UNORDERED) or not hasattr(type(data), "__iter__"):
        return False
    if isinstance(data, torch.utils.data.IterableDataset):
        return True
    try:
        len(data)
    except (TypeError, NotImplementedError):
        return True
    return not hasattr(type(data), "__getitem__")


def check_stream(stream: Any) -> None:
    """Refuse a stream that was split by rank already."""
    split = getattr(stream, "_distributed", None)
    if split is not None:
        raise DataError(
            "stream",
            f"{type(stream).__name__} was split by rank (part {split.rank} of {split.world_size}), "
            "and each rank takes its own rows of the whole",
            "Leave split_dataset_by_node out.",
        )
