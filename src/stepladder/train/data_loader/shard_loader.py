"""A DataLoader handed to a run on several ranks: each of its batches is a global batch.

On one process a run learns from the loader's batches as they come. On several ranks it learns from
the same batches, and every rank takes its own rows of each. Where the loader reads samples by index
each rank reads only its rows; any other loader is read whole on every rank. Ranks compare what they
read, because a dataset or a sampler may have split itself by rank already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

from stepladder.checkpoint import as_bytes
from stepladder.data import Batch, iter_tensors
from stepladder.data.loading.sample_seeds import SampleSeeds
from stepladder.errors import DataError
from stepladder.plan import Plan
from stepladder.train.batch_rows import rows_of
from stepladder.train.step_batch import (
    Rows,
    count_rows,
    counted,
    own_part,
    structure,
    take_rows,
)
from stepladder.world import World

from .agreed_generators import AgreedGenerators
from .loader_errors import ExplainedBatches
from .rank_reader import ChosenBatches, RankReader, as_it_is, hash_of

OTHER_ROWS = (
    "Pass rows='rank' if each rank reads rows of its own, or take batches from run.batches."
)


@dataclass(frozen=True, slots=True)
class LoaderShards:
    """This rank's part of every batch of a DataLoader."""

    loader: DataLoader
    plan: Plan
    world: World
    seed: int
    start: int  # position in the run of the first batch

    def __iter__(self) -> Iterator[Batch]:
        if (sampler := distributed_sampler(self.loader)) is not None:
            check_replicas(sampler, self.world)
            return self.own_batches()
        return self.chosen_batches() if chooses_indices(self.loader) else self.whole_batches()

    def own_batches(self) -> Iterator[Batch]:
        """Batches of a loader that reads other rows on each rank."""
        position = self.start
        for given in self.loader:
            made, counts = counted(given, self.world.gather_counts)
            yield own_part(made, position, counts, self.world.data_index)
            position += sum(counts)

    def chosen_batches(self) -> Iterator[Batch]:
        """Batches of a loader that reads samples by index."""
        rows = partial(rows_by_size, self.plan, self.world.data_index)
        reader = RankReader(
            self.loader.dataset, self.loader.collate_fn, rows, SampleSeeds(self.seed)
        )
        chosen = ChosenBatches(self.loader, AgreedGenerators(self.world), self.start)
        position = self.start
        for given, size, number in like(self.loader, reader, chosen):
            self.check_same(number)
            made = structure(given)
            if reader.whole:
                yield take_rows(made, rows(count_rows(made)), position, count_rows(made))
            else:
                count_rows(made)  # refuses what holds no rows
                idle = not len(rows(size))
                yield Batch.of(made, position=position, size=size, idle=idle)
            position += size

    def whole_batches(self) -> Iterator[Batch]:
        """Batches of any other loader, of which every rank reads all."""
        generators = AgreedGenerators(self.world)
        # Workers draw in processes of their own; what is drawn here must be alike on every rank.
        drawing = nullcontext if self.loader.num_workers else generators.in_use
        with generators.in_use():
            batches = iter(self.loader)
        position = self.start
        while True:
            with drawing():
                given = next(batches, None)
            if given is None:
                self.check_same(0)
                return
            made = structure(given)
            size = count_rows(made)
            self.check_same(content(made))
            yield take_rows(made, rows_of(self.plan, size, self.world.data_index), position, size)
            position += size

    def check_same(self, number: int) -> None:
        """Raise on all ranks where they do not read the same batch."""
        numbers = self.world.gather_counts(number)
        if len(set(numbers)) > 1:
            other = next(rank for rank, one in enumerate(numbers) if one != numbers[0])
            raise DataError(
                "loader", f"data ranks 0 and {other} do not read the same batch from it", OTHER_ROWS
            )


def shard_batches(
    batches: Iterable[Any], rows: Rows | None, plan: Plan, world: World, seed: int, start: int = 0
) -> Iterable[Any]:
    """The batches as they are, or this rank's part of a DataLoader's where several ranks share.

    Args:
        rows: as in `run.step`; None: a DataLoader's batches are global ones.
        start: position in the run of the first batch.
    """
    if not isinstance(batches, DataLoader):
        return batches
    found: Iterable[Any] = batches
    if plan.layout.data_ranks > 1 and rows is None:
        found = LoaderShards(batches, plan, world, seed, start)
    elif plan.layout.data_ranks > 1 and rows == "rank":
        if (sampler := distributed_sampler(batches)) is not None:
            check_replicas(sampler, world)
        found = refuse_copies(batches, world.gather_counts)
    return ExplainedBatches(found, batches)


def refuse_copies(batches: Iterable[Any], gather: Callable[[int], list[int]]) -> Iterator[Any]:
    """The batches of rows='rank', unless every rank reads the same first one."""
    for index, given in enumerate(batches):
        if index == 0:
            made = structure(given)
            numbers = gather(content(made) if any(True for _ in iter_tensors(made)) else -1)
            if len(set(numbers)) == 1 and numbers[0] >= 0:
                raise DataError(
                    "rows",
                    f"'rank' was given, and all {len(numbers)} ranks read the same rows from the "
                    "DataLoader",
                    "Leave rows out, and each rank takes its own rows of every batch.",
                )
        yield given


def distributed_sampler(loader: DataLoader) -> DistributedSampler | None:
    """The sampler that splits the samples by rank, if the loader has one."""
    inner = getattr(loader.batch_sampler, "sampler", None)
    return next((s for s in (loader.sampler, inner) if isinstance(s, DistributedSampler)), None)


def check_replicas(sampler: DistributedSampler, world: World) -> None:
    """Refuse a split by rank that is not the plan's: tensor-parallel ranks read the same rows."""
    ways, index = world.layout.data_ranks, world.data_index
    if (sampler.num_replicas, sampler.rank) != (ways, index):
        raise DataError(
            "DistributedSampler",
            f"reads part {sampler.rank} of {sampler.num_replicas}, and this rank's rows are part "
            f"{index} of {ways}",
            f"Use DistributedSampler(num_replicas={ways}, rank={index}), or leave it out.",
        )


def chooses_indices(loader: DataLoader) -> bool:
    """Whether batches are lists of indices that torch's own loader reads."""
    plain = type(loader).__iter__ is DataLoader.__iter__
    stream = isinstance(loader.dataset, IterableDataset)
    return plain and not stream and loader.batch_sampler is not None


def like(loader: DataLoader, reader: RankReader, chosen: ChosenBatches) -> DataLoader:
    """A loader with the same workers that reads a rank's rows of each chosen batch."""
    workers: dict[str, Any] = {}
    if loader.num_workers:
        workers = {
            "prefetch_factor": loader.prefetch_factor,
            "multiprocessing_context": loader.multiprocessing_context,
        }
    return DataLoader(
        reader,
        batch_size=None,
        sampler=chosen,
        collate_fn=as_it_is,
        num_workers=loader.num_workers,
        worker_init_fn=loader.worker_init_fn,
        timeout=loader.timeout,
        pin_memory=loader.pin_memory,
        generator=torch.Generator(),  # else it would draw from the step's
        **workers,
    )


def content(made: Any) -> int:
    """A hash of a batch's shapes, and of its first and last row."""
    parts = []
    for tensor in iter_tensors(made):
        ends = tensor[[0, -1]] if tensor.dim() and len(tensor) else tensor
        data = as_bytes(ends.cpu())
        parts += [str((tuple(tensor.shape), tensor.dtype)).encode(), data.numpy().tobytes()]
    return hash_of(*parts)


def rows_by_size(plan: Plan, data_index: int, size: int) -> np.ndarray:
    return rows_of(plan, size, data_index)
