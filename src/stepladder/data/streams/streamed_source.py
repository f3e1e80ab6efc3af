"""A stream as the data of a recipe: its first samples by index, and the stream to train on.

The first samples are what a model is traced on and, where no others are named for it, validated
with; training then begins after them.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from itertools import chain, islice
from typing import Any

from stepladder.errors import DataError

from .stream_samples import DATASETS_STATE, is_spent_by_reading

HELD_OUT = 256  # samples that are validated with, and not trained on


class StreamedSource:
    """Addressed by index it is the first samples alone; `stream` is what a run reads.

    >>> from stepladder.data.streams.streamed_source import StreamedSource
    >>> source = StreamedSource(iter(range(1000)), held_out=10)
    >>> len(source), next(iter(source.stream))
    (10, 10)
    """

    def __init__(
        self, stream: Any, held_out: int = HELD_OUT, *, train_on_all: bool = False
    ) -> None:
        kept = deepcopy(stream.state_dict()) if has_own_state(stream) else None
        samples = iter(stream)
        self.first = list(islice(samples, held_out))
        if len(self.first) < held_out and not (train_on_all and self.first):
            problem = f"the stream has {len(self.first)} samples, and the first {held_out} validate"
            remedy = "Return two: a stream to train on, and samples to validate with."
            raise DataError("data", problem, remedy)
        if is_spent_by_reading(stream):
            self.stream: Any = chain(self.first, samples) if train_on_all else samples
            return
        if kept is not None:
            stream.load_state_dict(kept)
        self.stream = stream if train_on_all else without_first(stream, held_out)

    def __len__(self) -> int:
        return len(self.first)

    def __getitem__(self, index: int) -> Any:
        return self.first[index]


def has_own_state(stream: Any) -> bool:
    """Whether reading moves it; a streaming dataset of Hugging Face begins anew by itself."""
    known = hasattr(stream, "state_dict") and hasattr(stream, "load_state_dict")
    return known and not hasattr(stream, DATASETS_STATE)


def without_first(stream: Any, count: int) -> Any:
    """The stream from a sample on, in every epoch."""
    if callable(skip := getattr(stream, "skip", None)):  # as a streaming dataset has it
        return skip(count)
    return (
        PositionedTrainingStream(stream, count)
        if has_own_state(stream)
        else TrainingStream(stream, count)
    )


class TrainingStream:
    """A stream that passes over its first samples."""

    def __init__(self, stream: Any, count: int) -> None:
        self.inner, self.count = stream, count

    def __iter__(self) -> Iterator[Any]:
        return islice(iter(self.inner), self.count, None)

    def set_epoch(self, epoch: int) -> None:
        if hasattr(self.inner, "set_epoch"):
            self.inner.set_epoch(epoch)


class PositionedTrainingStream(TrainingStream):
    """The same of a stream that keeps its position, which says what was passed over."""

    loaded = False

    def __iter__(self) -> Iterator[Any]:
        first, self.loaded = 0 if self.loaded else self.count, False
        return islice(iter(self.inner), first, None)

    def state_dict(self) -> Any:
        return self.inner.state_dict()

    def load_state_dict(self, state: Any) -> None:
        self.inner.load_state_dict(state)
        self.loaded = True
