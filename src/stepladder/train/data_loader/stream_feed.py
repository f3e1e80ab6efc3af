"""A run's batches of a stream: every rank reads it whole, and ranks compare what they read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from stepladder.data import Batch, Prefetcher
from stepladder.data.streams.stream_batches import is_stream
from stepladder.data.streams.stream_place import keeps_position
from stepladder.errors import DataError
from stepladder.train.engine import Engine
from stepladder.train.feed import Feed

FAILED, ENDED = -1, 0  # in place of a batch's hash


class StreamFeed(Feed):
    """Batches of a stream, the same on every rank."""

    def __init__(
        self,
        make: Callable[[], Prefetcher],
        loads: Callable[[], int],
        *,
        endless: bool,
        number: int,
        gather: Callable[[int], list[int]],
    ) -> None:
        super().__init__(make, loads, endless=endless)
        self._number, self._gather = number, gather

    def __next__(self) -> Batch:
        try:
            batch = super().__next__()
        except DataError:
            self._gather(FAILED)
            raise
        except StopIteration:
            self._check(self._gather(ENDED))
            raise
        self._check(self._gather(batch.content))
        assert batch.place is not None
        return replace(batch, place=replace(batch.place, stream=self._number))

    def _check(self, contents: list[int]) -> None:
        """Raise on all ranks where they were not given the same batch."""
        if len(set(contents)) == 1:
            return
        self.close()
        if FAILED in contents:
            where = f"data rank {contents.index(FAILED)} cannot read its stream"
            raise DataError("stream", where, "Its log says why.")
        other = next(rank for rank, one in enumerate(contents) if one != contents[0])
        raise DataError(
            "stream",
            f"data ranks 0 and {other} do not read the same samples from it",
            "Have every rank read all of it in one order, which follows from a seed.",
        )


def open_feed(run: Engine, make: Callable[[], Prefetcher], source: Any, *, endless: bool) -> Feed:
    """The batches that `make` opens, which follow the run where a checkpoint puts it."""

    def loads() -> int:
        return run.health.loads

    if not is_stream(source):
        return Feed(make, loads, endless=endless)
    tell_how_it_resumes(source, run.events)
    number, gather = run.reading.streams.number(source), run.world.gather_counts
    return StreamFeed(make, loads, endless=endless, number=number, gather=gather)


def tell_how_it_resumes(stream: Any, events: list[str]) -> None:
    """Say once where a resumed run will have to read again what it read before."""
    said = (
        f"the stream {type(stream).__name__} keeps no position that leads back to its next sample: "
        "a resumed run reads again what was read of the epoch, and passes over it"
    )
    if not keeps_position(stream) and said not in events:
        events.append(said)
