"""Random transforms: what reading a sample draws depends on the seed and the sample's position.

A sample's `__getitem__` may draw from the generators of torch, numpy and Python. All three are
seeded before each sample from (seed, position in the run), which tells epochs apart, and are put
back after the batch. So a sample is the same on any number of ranks, with any workers and after a
resume, and the training step never sees what was drawn.

The generators belong to the whole process: a thread that reads ahead would draw between the draws
of the step. Sources that may draw are therefore read by processes, or in the step's own thread.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from stepladder.data.sample_order import Integers, mix

STORED = (list, tuple, range, torch.Tensor, np.ndarray, TensorDataset)  # reading them draws nothing
INNER = ("source", "sources", "dataset", "datasets")  # what a wrapper reads from
KEY = 0x53414D504C45  # tells these numbers from those of the sample order


@dataclass(frozen=True, slots=True)
class SampleSeeds:
    """The seed of every sample of a run."""

    seed: int

    def at(self, positions: Integers) -> list[int]:
        """One seed for each position of the run."""
        key = mix(np.full(len(positions), (self.seed ^ KEY) & (2**64 - 1), np.uint64))
        return mix(key + np.asarray(positions).astype(np.uint64)).tolist()


def seed_generators(word: int) -> None:
    """Seed the generators that a transform may draw from."""
    random.seed(word)
    np.random.seed([word & 0xFFFFFFFF, word >> 32])
    torch.default_generator.manual_seed(word >> 1)


@contextmanager
def generators_restored() -> Iterator[None]:
    """Context after which every generator is as it was before."""
    python, arrays, tensors = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(arrays)
        torch.set_rng_state(tensors)


def may_draw(source: Any) -> bool:
    """Whether reading a sample runs code that might draw random numbers.

    A source that says `parallel = True` promises that it does not.
    """
    if type(source) in STORED or getattr(source, "parallel", False) is True:
        return False
    home = type(source).__module__.partition(".")[0]
    if home == "datasets":  # Hugging Face: only a transform set by the user is code
        return (getattr(source, "format", None) or {}).get("type") == "custom"
    if home == "stepladder" or type(source) in (Subset, ConcatDataset):
        return any(may_draw(inner) for inner in _inner_sources(source))
    return True


def _inner_sources(source: Any) -> Iterator[Any]:
    for name in INNER:
        inner = vars(source).get(name, ()) if hasattr(source, "__dict__") else ()
        if name.endswith("s"):
            yield from inner
        elif inner != ():
            yield inner
