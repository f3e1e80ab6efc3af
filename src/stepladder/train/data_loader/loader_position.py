"""Where a run stands in a DataLoader, so that a resumed run goes on with the batch after the last.

A DataLoader has no position. So a checkpoint keeps the random generators as they were when the
epoch began, and how many batches were read since: a resumed run begins the epoch with the same
generators and passes over those batches. A loader with a `state_dict` of its own, such as
torchdata's StatefulDataLoader, is set by that instead; so is a stream that keeps its position,
where the loader reads it in this process and so no further than it is asked to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from stepladder.data import Batch
from stepladder.data.streams.stream_place import keeps_position
from stepladder.data.streams.stream_samples import forget_loaded_state
from stepladder.train.checkpointing.plain_values import decode, encode
from stepladder.train.checkpointing.rng_state import read_generators, set_generators

from . import stream_places
from .stream_places import StreamPlaces

CPU = torch.device("cpu")
KEY = "loader"  # of the position, in a rank's own file

Open = Callable[[int], Iterable[Any]]  # the batches of an epoch that began at this position


@dataclass(slots=True)
class LoaderPosition:
    """The loader that a run reads, what it began with, and how far it was read."""

    loader: Any = None
    began: dict[str, Any] = field(default_factory=dict)
    batches: int = 0  # of this epoch that were read
    ended: bool = False  # an epoch was read to its end
    saved: Tensor | None = None  # of a checkpoint, until the next loader is read
    streams: StreamPlaces = field(default_factory=StreamPlaces)  # what run.batches reads

    def read(self, loader: Any, position: int, opened: Open, events: list[str]) -> Iterator[Any]:
        """The batches of one epoch, after a resume from where the checkpoint was saved."""
        saved, self.saved = self.saved, None
        self.loader = loader
        source: Iterator[Any] = iter(())
        if saved is not None:
            source = self.go_on(decode(saved), position, opened, events)
        first = list(islice(source, 1))
        if not first:  # a new epoch
            self.began, self.batches = {**read_start(loader), "position": position}, 0
            source = iter(opened(position))
        forget_loaded_state(getattr(loader, "dataset", None))
        for batch in chain(first, source):
            self.batches += 1
            yield batch
        self.loader, self.ended = None, True

    def go_on(
        self, saved: dict[str, Any], position: int, opened: Open, events: list[str]
    ) -> Iterator[Any]:
        """The batches that were left of the epoch; none where it had ended."""
        if not saved and position:
            events.append(
                "the checkpoint does not know where it was in a DataLoader: its first batch is next"
            )
        if not saved or saved.get("ended"):
            return iter(())
        if saved.get("state") is not None and keeps_state(self.loader):
            self.loader.load_state_dict(saved["state"])
            return iter(opened(position))
        if saved.get("stream") is not None and stream_of(self.loader) is not None:
            return self.go_on_in_stream(saved, position, opened, events)
        now, start = read_start(self.loader), saved["began"]
        set_start(self.loader, start)
        source = iter(opened(start["position"]))
        passed = sum(1 for _ in islice(source, saved["batches"]))
        set_generators(now["generators"], CPU)
        if isinstance(getattr(self.loader, "dataset", None), IterableDataset):
            events.append(
                f"the DataLoader reads a stream: {passed} batches were read again from its start"
                + (", as its workers read ahead of it" if stream_keeps(self.loader) else "")
            )
        if passed < saved["batches"]:
            events.append(
                f"{saved['batches']} batches of the DataLoader were read before the checkpoint, "
                f"and it has {passed} now"
            )
        self.began, self.batches = start, passed
        return source

    def go_on_in_stream(
        self, saved: dict[str, Any], position: int, opened: Open, events: list[str]
    ) -> Iterator[Any]:
        """Have the stream be where it was, instead of reading up to there."""
        stream, now = stream_of(self.loader), read_generators(CPU)
        set_epochs(self.loader, saved["began"])
        assert stream is not None
        stream.load_state_dict(saved["stream"])
        source = iter(opened(position))
        set_generators(now, CPU)  # a loader draws when it begins, and this one began before
        self.began, self.batches = saved["began"], saved["batches"]
        events.append(
            f"the DataLoader's stream goes on from its own state, after {self.batches} batches"
        )
        return source

    def advance(self, position: int, batch: Batch) -> int:
        """The run's position after a batch that was learned from."""
        self.streams.learned(batch.place)
        return position + batch.size

    def restore(self, kept: dict[str, Tensor] | None) -> None:
        """Be where a checkpoint was; None: no run wrote it."""
        self.saved = None if kept is None else kept.get(KEY, encode({}))
        self.streams.load((kept or {}).get(stream_places.KEY))

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint keeps, by its key in the rank's file."""
        return {**self.loader_state(), **self.streams.state()}

    def loader_state(self) -> dict[str, Tensor]:
        if self.loader is None:
            return {KEY: encode({"ended": True})} if self.ended else {}
        place = {"began": self.began, "batches": self.batches}
        own = self.loader.state_dict() if keeps_state(self.loader) else None
        stream = stream_of(self.loader)
        states = {"state": own, "stream": stream.state_dict() if stream is not None else None}
        try:
            return {KEY: encode({**place, **states})}
        except (TypeError, ValueError):  # a state of the loader's that no checkpoint holds
            return {KEY: encode(place)}


def is_loader(batches: Any) -> bool:
    return isinstance(batches, DataLoader) or keeps_state(batches)


def keeps_state(loader: Any) -> bool:
    return hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")


def read_start(loader: Any) -> dict[str, Any]:
    """All that an epoch's order follows from, as it is now."""
    states = [generator.get_state() for generator in generators_of(loader)]
    counting = [one for one in (*samplers_of(loader), dataset_of(loader)) if counts_epochs(one)]
    epoch = counting[0].epoch if counting else None
    return {"generators": read_generators(CPU), "own": states, "epoch": epoch}


def set_start(loader: Any, start: dict[str, Any]) -> None:
    set_generators(start["generators"], CPU)
    for generator, state in zip(generators_of(loader), start["own"]):
        generator.set_state(state)
    set_epochs(loader, start)


def set_epochs(loader: Any, start: dict[str, Any]) -> None:
    for part in (*samplers_of(loader), dataset_of(loader)):
        if start["epoch"] is not None and counts_epochs(part):
            part.set_epoch(start["epoch"])


def counts_epochs(part: Any) -> bool:
    return hasattr(part, "set_epoch") and hasattr(part, "epoch")


def dataset_of(loader: Any) -> Any:
    """The stream that a loader reads; None where it reads samples by index."""
    found = getattr(loader, "dataset", None)
    return found if isinstance(found, IterableDataset) else None


def stream_keeps(loader: Any) -> bool:
    """Whether the loader's stream has a state that leads back to its next sample."""
    stream = dataset_of(loader)
    return stream is not None and keeps_position(stream)


def stream_of(loader: Any) -> Any:
    """The loader's stream where its own state is where the loader is."""
    here = isinstance(loader, DataLoader) and not loader.num_workers
    return dataset_of(loader) if here and stream_keeps(loader) else None


def generators_of(loader: Any) -> list[torch.Generator]:
    """The generators that the loader and its samplers were given, each once."""
    found = [getattr(part, "generator", None) for part in (loader, *samplers_of(loader))]
    return list({id(one): one for one in found if isinstance(one, torch.Generator)}.values())


def samplers_of(loader: Any) -> list[Any]:
    batches = getattr(loader, "batch_sampler", None)
    found = (getattr(loader, "sampler", None), batches, getattr(batches, "sampler", None))
    return list({id(one): one for one in found if one is not None}.values())
