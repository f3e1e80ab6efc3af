"""Where a run stands in a stream: enough to go on with the sample after the last.

A stream has no sample number p, so its place is a cursor and a count. The cursor is a point that
the stream can be put back to: its own `state_dict` where it keeps one that loses nothing, else the
number of samples of this epoch that were read before, which are then read again and passed over.
The count says how many samples after the cursor were given out already.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

FORGETS = "BufferShuffled"  # layers of a streaming dataset whose state leaves samples out


@dataclass(frozen=True, slots=True)
class Cursor:
    """A point that a stream can be put back to."""

    epoch: int = 0
    index: int = 0  # samples of this epoch that come before it
    count: int = 0  # samples of all epochs that come before it
    state: Any = None  # the stream's own; None: samples are read again
    first: int = 0  # hash of this epoch's first sample; 0: not read yet


@dataclass(frozen=True, slots=True)
class StreamPlace:
    """The next sample of a run: so many samples after a cursor, in blocks shuffled by a seed."""

    cursor: Cursor = Cursor()
    taken: int = 0  # samples after the cursor that were given out
    buffer: int = 0  # samples that are shuffled together; 0: the stream's own order
    seed: int = 0
    stream: int = 0  # which one, in this process only

    @property
    def count(self) -> int:
        """Samples of the stream that were given out, of all epochs."""
        return self.cursor.count + self.taken

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for a checkpoint."""
        return {**fields_of(self), "cursor": fields_of(self.cursor)}

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> StreamPlace:
        return cls(**{**saved, "cursor": Cursor(**saved["cursor"]), "stream": 0})


def fields_of(value: Cursor | StreamPlace) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in fields(value)}


def keeps_position(stream: Any) -> bool:
    """Whether the stream's own state leads back to exactly the next sample.

    The state of a streaming dataset of Hugging Face leaves out what its shuffle buffer holds, and
    may pass over a batch where its rows are tables.
    """
    if not (hasattr(stream, "state_dict") and hasattr(stream, "load_state_dict")):
        return False
    tables = getattr(getattr(stream, "_formatting", None), "is_table", False)
    return not tables and not any(FORGETS in type(layer).__name__ for layer in layers(stream))


def layers(stream: Any) -> Iterator[Any]:
    """The iterables that a streaming dataset is made of, the last one first."""
    waiting = [getattr(stream, "_ex_iterable", None)]
    while waiting:
        layer = waiting.pop()
        if layer is not None:
            yield layer
            waiting += [getattr(layer, "ex_iterable", None), *getattr(layer, "ex_iterables", ())]
