"""One rank's rows of the batches that a DataLoader's batch sampler chooses."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, default_collate

from stepladder.data.loading.sample_seeds import SampleSeeds, generators_restored, seed_generators

from .agreed_generators import AgreedGenerators

Chosen = tuple[int, Sequence[Any]]  # a global batch: its position in the run and its indices
Part = tuple[Any, int, int]  # what a rank reads of it, rows of all of it, a hash of its indices


class ChosenBatches:
    """The global batches of one epoch, as the loader's own batch sampler chooses them."""

    def __init__(self, loader: DataLoader, generators: AgreedGenerators, start: int) -> None:
        self.loader, self.generators, self.start = loader, generators, start

    def __iter__(self) -> Iterator[Chosen]:
        position = self.start
        with self.generators.in_use():
            # As the loader itself does first: its workers' seed.
            torch.empty((), dtype=torch.int64).random_(generator=self.loader.generator)
            batches = iter(self.loader.batch_sampler or ())
        while True:
            with self.generators.in_use():
                indices = next(batches, None)
            if indices is None:
                return
            chosen = list(indices)
            yield position, chosen
            position += len(chosen)


@dataclass(frozen=True, slots=True)
class RankReader(Dataset):
    """Reads this rank's rows of a global batch, each sample seeded by its position.

    A `collate_fn` of the user's may do anything with the samples of a batch, such as padding them
    to the longest: it is given all of them, on every rank, and the rows are taken after it.
    """

    dataset: Any
    collate: Callable[[list[Any]], Any]
    rows: Callable[[int], np.ndarray]  # of a global batch of so many, those of this rank
    seeds: SampleSeeds

    @property
    def whole(self) -> bool:
        return self.collate is not default_collate

    def __getitem__(self, chosen: Chosen) -> Part:
        position, indices = chosen
        size = len(indices)
        read = np.arange(size) if self.whole else self.rows(size)
        if not len(read):  # fewer rows than ranks: another rank's row stands in
            read = np.zeros(1, np.int64)
        with generators_restored():
            samples = []
            for place, seed in zip(read.tolist(), self.seeds.at(position + read)):
                seed_generators(seed)
                samples.append(self.dataset[indices[place]])
            return self.collate(samples), size, hash_of(str(indices).encode())


def hash_of(*parts: bytes) -> int:
    """A whole number of 62 bits, the same in every process."""
    found = hashlib.blake2b(digest_size=8)
    for part in parts:
        found.update(part)
    return int.from_bytes(found.digest(), "little") >> 2


def as_it_is(value: Any) -> Any:
    return value
