"""The order in which a run is given a stream's samples: the stream's own, or shuffled in blocks.

The shuffle buffer holds a block of so many neighbours, and gives them out in an order that follows
from the seed and the block. A buffer that is refilled sample by sample was not used: what it holds
depends on all that was read before, so no place in it could be found again without saving what it
holds, on every rank. While a block is given out the next one is read, a sample for each, so that no
step waits for a whole block but the first.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from stepladder.data.sample_order import SampleOrder

from .stream_place import Cursor, StreamPlace
from .stream_samples import END, StreamSamples

BUFFER = 1000  # samples shuffled together where a run says only that they are to be


@dataclass(slots=True)
class Block:
    """Neighbours of one epoch, from a cursor on."""

    cursor: Cursor
    samples: list[Any] = field(default_factory=list)
    whole: bool = False
    taken: int = 0
    order: list[int] = field(default_factory=list)

    def pull(self, samples: StreamSamples, buffer: int) -> None:
        """Read one more, unless the block or the epoch is at its end."""
        if self.whole:
            return
        sample = samples.read()
        if sample is not END:
            self.samples.append(sample)
        self.whole = sample is END or len(self.samples) == buffer

    def shuffle(self, seed: int) -> None:
        """Decide the order, which follows from where the block begins."""
        size = len(self.samples)
        if size:
            first = self.cursor.count * size  # epochs of an order of `size`: each has its own
            order = SampleOrder(size, seed)
            self.order = order.indices(range(first, first + size)).tolist()  # type: ignore[arg-type]


class StreamOrder:
    """Gives out a stream's samples from a place on."""

    def __init__(self, samples: StreamSamples, buffer: int, seed: int) -> None:
        self.samples, self.buffer, self.seed = samples, buffer, seed
        self.block: Block | None = None
        self.ahead: Block | None = None
        self.settings = buffer, seed  # of the block that is given out

    def seek(self, place: StreamPlace) -> None:
        """Go on from a place; a block that was begun is given out as it was shuffled."""
        self.samples.seek(place.cursor)
        self.block = self.ahead = None
        if not place.taken:
            return
        self.settings = place.buffer, place.seed
        self.block = self._fill(Block(place.cursor))
        self.block.taken = place.taken

    def take(self, count: int) -> list[Any]:
        """The next samples; fewer where the stream ends and does not begin again."""
        taken: list[Any] = []
        while len(taken) < count:
            found = self._next_in_order() if self.buffer or self.block else self._next_as_read()
            if found is END:
                break
            taken.append(found)
        return taken

    def place(self) -> StreamPlace:
        """Where the next sample is."""
        block = self.block
        if block is None or block.taken == len(block.samples):
            cursor = self.ahead.cursor if self.ahead else self.samples.cursor()
            return StreamPlace(cursor, 0, self.buffer, self.seed)
        return StreamPlace(block.cursor, block.taken, *self.settings)

    def _next_as_read(self) -> Any:
        for _ in range(2):  # an epoch's end, and the first of the next
            if (sample := self.samples.read()) is not END:
                return sample
        return END

    def _next_in_order(self) -> Any:
        while self.block is None or self.block.taken == len(self.block.samples):
            if self.block is not None and not self.buffer:  # the last of a block of another run
                self.block = None
                return self._next_as_read()
            if self.block is not None and self.ahead is None and self.samples.ended:
                return END
            begun = self.ahead or Block(self.samples.cursor())
            self.settings, self.ahead = (self.buffer, self.seed), None
            self.block = self._fill(begun)
            if not self.block.samples and self.samples.ended:
                return END
        block = self.block
        sample = block.samples[block.order[block.taken]]
        block.taken += 1
        if self.buffer and block.whole:
            if self.ahead is None:
                self.ahead = Block(self.samples.cursor())
            self.ahead.pull(self.samples, self.buffer)
        return sample

    def _fill(self, block: Block) -> Block:
        buffer, seed = self.settings
        while not block.whole:
            block.pull(self.samples, buffer)
        block.shuffle(seed)
        return block
