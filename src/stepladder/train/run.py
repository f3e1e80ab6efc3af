"""A run: the engine, and what users ask of it by name."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stepladder.data import Prefetcher

from .checkpoint import Saver
from .engine import Engine
from .loop import feed
from .replicas import check_replicas
from .resume import load


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

        Without `wait` training goes on once the state is copied; a save that then fails is an
        event of the run. `finish_saving` waits for it.
        """
        return self.saver.save(self, folder, wait=wait)

    def check_copies(self) -> None:
        """Raise where ranks that should hold the same parameters do not; every rank calls it."""
        check_replicas(self.climbed.pieces, self.world, self.index)

    def finish_saving(self) -> None:
        """Wait until the last checkpoint is on the disk; raise where it could not be written."""
        self.saver.finish()

    def load(self, folder: str | Path) -> Path:
        """Go on from a checkpoint, or from the latest of a folder."""
        return load(self, folder)
