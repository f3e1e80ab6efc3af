"""TensorBoard: event files in the run folder's `tensorboard`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .scalars import scalars
from .targets import import_tracker


class TensorBoard:
    name = "tensorboard"

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "tensorboard"
        import_tracker("tensorboard")
        self._open = import_tracker("torch.utils.tensorboard").SummaryWriter
        self._writer: Any = None

    def write(self, kind: str, entry: dict[str, Any]) -> None:
        step = entry.get("step")
        if kind == "start" or self._writer is None:
            self._start(step if kind == "start" else None)
        for name, value in scalars(kind, entry).items():
            self._writer.add_scalar(name, value, step)
        if kind == "start":
            self._writer.add_text("plan", str(entry.get("plan", "")), step)
        elif kind == "event":
            self._writer.add_text("events", str(entry.get("text", "")), step)

    def _start(self, step: Any) -> None:
        """Open an event file for each start; it purges the steps that a resumed run repeats."""
        if self._writer is not None:
            self._writer.close()
        purge = step if isinstance(step, int) and step > 0 else None
        self._writer = self._open(str(self._folder), purge_step=purge)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
