"""The training and the validation split of any source, decided by the sample's index alone."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from .sample_order import Integers, SampleOrder
from .source import Source

Split = Literal["train", "validation"]
ONE_IN = 10  # samples is held out for validation
SEED = 10  # must never change, or a resumed run would train on validation samples


class SplitSource:
    """Nine tenths of a source for training, or the tenth for validation.

    The tenth is drawn at random; from a source that is decoded in blocks it is the last tenth, so
    that neither split has to decode everything.
    """

    def __init__(self, source: Source, split: Split) -> None:
        self.source, self.split = source, split
        self._order = SampleOrder(len(source), SEED)
        self._num_held_out = max(len(source) // ONE_IN, 1)

    def __getattr__(self, name: str) -> Any:
        # These properties of the source hold for a part of it too.
        if name in ("length", "parallel", "block", "blocks_together"):
            return getattr(self.source, name)
        raise AttributeError(name)

    def where(self, index: int) -> str:
        """The file or token range of a sample, for error messages."""
        inner = int(self._indices(np.asarray([index]))[0])
        where = getattr(self.source, "where", None)
        return where(inner) if where else f"sample {inner}"

    def __len__(self) -> int:
        return (
            self._num_held_out
            if self.split == "validation"
            else len(self.source) - self._num_held_out
        )

    def __getitem__(self, index: int) -> Any:
        return self.source[int(self._indices(np.asarray([index]))[0])]

    def fetch(self, indices: Integers) -> Any:
        fetch = getattr(self.source, "fetch", None)
        return fetch(self._indices(indices)) if fetch else None

    def _indices(self, indices: Integers) -> Integers:
        if getattr(self.source, "block", 0):
            return np.asarray(indices) + (len(self.source) - self._num_held_out) * (
                self.split == "validation"
            )
        first = 0 if self.split == "validation" else self._num_held_out
        return self._order.indices(np.asarray(indices) + first)
