"""A run: the engine, and what users ask of it by name."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stepladder.data import Prefetcher
from stepladder.record import Profile
from stepladder.train.checkpointing.resume import load, resume
from stepladder.train.checkpointing.save import Saver
from stepladder.train.health.replica_check import check_replicas

from .engine import Engine
from .loop import feed
from .profile_steps import profile


@dataclass(slots=True)
class Run(Engine):
    """A module being trained."""

    because: str = ""  # why its plan was chosen, where nobody asked for one
    saver: Saver = field(default_factory=Saver)

    def batches(
        self, source: Any, size: int | None = None, seed: int = 0, **how: Any
    ) -> Prefetcher:
        """This rank's part of the global batches, from where the run stands."""
        return feed(self, source, size=size, seed=seed, **how)

    def save(self, folder: str | Path, *, wait: bool = True) -> Path:
        """Write a checkpoint into `folder/step-NNNNNN`; every rank calls it.

        Without `wait` training goes on and the state is copied beside the next batch's passes;
        whoever changes parameters by other means than `step` calls `finish_saving` first, which
        waits for it. A save that fails is then an event of the run.
        """
        return self.saver.save(self, folder, wait=wait)

    def profile(
        self, feed: Iterable[Any], *, steps: int = 4, folder: str | Path | None = None
    ) -> Profile:
        """Where a step's time goes, with a verdict, from 2 · `steps` + 3 real steps of this run.

        Every rank calls it. The trace, for Perfetto or Chrome, is kept in `folder`.
        """
        return profile(self, feed, steps=steps, folder=folder)

    def rewind(self, folder: str | Path) -> Path:
        """Go back to the newest checkpoint, and on from there with data that was not read yet.

        Every rank calls it. The checkpoint is written again with that position in the data.
        """
        self.saver.finish(self.events)
        position, rewinds = self.position, self.health.rewinds
        path = self.load(folder)
        self.position, self.health.rewinds = position, rewinds + 1
        self.save(folder)
        return path

    def check_copies(self) -> None:
        """Raise where ranks that should hold the same parameters do not; every rank calls it."""
        check_replicas(self.climbed.pieces, self.world, self.index)

    def finish_saving(self) -> None:
        """Wait until the last checkpoint is on the disk; raise where it could not be written."""
        self.saver.finish()

    def load(self, folder: str | Path) -> Path:
        """Go on from a checkpoint, or from the latest of a folder."""
        return load(self, folder)

    def resume(self, folder: str | Path) -> Path | None:
        """Go on from the latest checkpoint of a folder; where it holds none, begin: None."""
        return resume(self, folder)
