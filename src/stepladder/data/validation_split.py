"""A training and a validation part of any source, told apart by position alone."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from .sample_order import Integers, Order
from .source import Source

Split = Literal["train", "validation"]
SHARE = 10  # one sample in so many is held out
SEED = 10  # any number: it only has to stay the same, so that no run ever trains on the rest


class Part:
    """Nine tenths of a source, or the tenth that training never sees.

    The tenth is drawn from everywhere; of a source whose neighbours are read together, it is the
    last, so that no part has to read everything.
    """

    def __init__(self, source: Source, split: Split) -> None:
        self.source, self.split = source, split
        self._order = Order(len(source), SEED)
        self._held = max(len(source) // SHARE, 1)

    def __getattr__(self, name: str) -> Any:
        # What a source tells of itself (its window, whether reading in parallel pays) stays true.
        if name in ("length", "parallel", "block", "together"):
            return getattr(self.source, name)
        raise AttributeError(name)

    def where(self, index: int) -> str:
        """The file or stretch a sample comes from, for errors."""
        inner = int(self._indices(np.asarray([index]))[0])
        where = getattr(self.source, "where", None)
        return where(inner) if where else f"sample {inner}"

    def __len__(self) -> int:
        return self._held if self.split == "validation" else len(self.source) - self._held

    def __getitem__(self, index: int) -> Any:
        return self.source[int(self._indices(np.asarray([index]))[0])]

    def fetch(self, indices: Integers) -> Any:
        fetch = getattr(self.source, "fetch", None)
        return fetch(self._indices(indices)) if fetch else None

    def _indices(self, indices: Integers) -> Integers:
        if getattr(self.source, "block", 0):
            return np.asarray(indices) + (len(self.source) - self._held) * (
                self.split == "validation"
            )
        first = 0 if self.split == "validation" else self._held
        return self._order.indices(np.asarray(indices) + first)
