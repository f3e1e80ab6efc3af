"""Where a run stands in the streams that it reads.

The place that a checkpoint keeps is that after the last batch that was learned from, whatever was
read ahead. All ranks read the same stream, so one rank's place serves any number of ranks.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from stepladder.data.streams.stream_place import StreamPlace
from stepladder.data.streams.stream_samples import StreamSamples, is_spent_by_reading
from stepladder.train.checkpointing.plain_values import decode, encode

KEY = "stream"  # of the place, in a rank's own file


@dataclass(slots=True)
class StreamPlaces:
    """The streams that a run reads, and the place in each after the last batch learned from."""

    streams: list[Any] = field(default_factory=list)  # a place names one by its index, from 1
    places: dict[int, StreamPlace] = field(default_factory=dict)
    iterators: dict[int, StreamSamples] = field(default_factory=dict)
    last: int = 0  # learned from last; 0: none
    saved: StreamPlace | None = None  # of a checkpoint, until a stream is read

    def number(self, stream: Any) -> int:
        """What a stream is called here."""
        for number, known in enumerate(self.streams, 1):
            if known is stream:
                return number
        self.streams.append(stream)
        return len(self.streams)

    def samples(self, stream: Any, seed: int) -> StreamSamples:
        """A reader of a stream; of an iterator always the same, which knows how far it was read."""
        if not is_spent_by_reading(stream):
            return StreamSamples(stream, seed)
        return self.iterators.setdefault(self.number(stream), StreamSamples(stream, seed))

    def start(self, stream: Any) -> StreamPlace | None:
        """Where to go on in a stream; None: it was not read yet."""
        number = self.number(stream)
        if self.saved is not None and self.last in (0, number):
            self.places[number], self.saved = self.saved, None
        return self.places.get(number)

    def learned(self, place: StreamPlace | None) -> None:
        if place is not None and place.stream:
            self.places[place.stream], self.last = place, place.stream

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint keeps, by its key in the rank's file."""
        place = self.places.get(self.last) or self.saved
        if place is None:
            return {}
        kept = replace(place, stream=0)
        try:
            return {KEY: encode(kept.to_dict())}
        except (TypeError, ValueError):  # a state that no checkpoint holds: samples are read again
            return {KEY: encode(replace(kept, cursor=replace(kept.cursor, state=None)).to_dict())}

    def load(self, saved: Tensor | None) -> None:
        """Be where a checkpoint was."""
        self.saved = None if saved is None else StreamPlace.from_dict(decode(saved))
        self.places.pop(self.last, None)

    def copy(self) -> StreamPlaces:
        return replace(self, streams=list(self.streams), places=dict(self.places))
