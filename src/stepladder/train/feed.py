"""A run's batches, which follow the run where a checkpoint puts it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from stepladder.data import Batch, Prefetcher


class Feed(Iterator[Batch]):
    """Batches from where the run stands, read ahead.

    A checkpoint that is loaded later moves the run: then they are read anew from there, as if the
    feed had been made after it.
    """

    def __init__(
        self, make: Callable[[], Prefetcher], loads: Callable[[], int], *, endless: bool = False
    ) -> None:
        self._make, self._count_loads = make, loads
        self.endless = endless  # epoch after epoch
        self._loads, self._batches = loads(), make()
        self._closed = False

    def __next__(self) -> Batch:
        if self._loads != self._count_loads() and not self._closed:
            self._batches.close()
            self._loads, self._batches = self._count_loads(), self._make()
        return next(self._batches)

    def close(self) -> None:
        """Stop the workers; closing twice is allowed."""
        self._closed = True
        self._batches.close()

    def __enter__(self) -> Feed:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getattr__(self, word: str) -> Any:
        if word == "_batches":  # not made yet
            raise AttributeError(word)
        return getattr(self._batches, word)
