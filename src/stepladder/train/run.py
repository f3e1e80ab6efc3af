"""A run: the engine, and what users ask of it by name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepladder.data import Prefetcher

from .checkpoint import load, save
from .engine import Engine
from .loop import feed


@dataclass(slots=True)
class Run(Engine):
    """A module being trained."""

    because: str = ""  # why its plan was chosen, where nobody asked for one

    def batches(
        self, source: Any, size: int | None = None, seed: int = 0, **how: Any
    ) -> Prefetcher:
        """This rank's part of the global batches, from where the run stands."""
        return feed(self, source, size=size, seed=seed, **how)

    def save(self, folder: str | Path) -> Path:
        """Write a whole checkpoint into `folder/step-NNNNNN`."""
        return save(self, folder)

    def load(self, folder: str | Path) -> Path:
        """Go on from a checkpoint, or from the latest of a folder."""
        return load(self, folder)
