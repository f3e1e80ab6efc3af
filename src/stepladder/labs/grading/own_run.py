"""A run of the learner's own code: its numbers, and what its ranks did, for pictures."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

from stepladder.labs.lab import Lab

from .own_process import Problem, ask

Event = dict[str, Any]  # a line of equipment/recorder.py


@dataclass(frozen=True, slots=True)
class OwnRun:
    """What a learner's code measured and did."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    acts: list[dict[int, list[Event]]] = field(default_factory=list)  # by start, then by rank
    problem: str = ""  # why there is none: the end of a sentence

    def main_act(self) -> dict[int, list[Event]]:
        """The last of those starts that had most ranks."""
        most = max((len(act) for act in self.acts), default=0)
        return next((act for act in reversed(self.acts) if len(act) == most), {})


def run_own(lab: Lab, path: Path, *, limit_seconds: float) -> OwnRun:
    """Run the file's `measure` while it is recorded."""
    with TemporaryDirectory() as folder:
        record = partial(run_recorded, folder=Path(folder), several=lab.ranks > 1)
        found = ask(record, lab, path, limit_seconds)
        return OwnRun(problem=found.text) if isinstance(found, Problem) else found


def run_recorded(lesson: ModuleType, *, folder: Path, several: bool) -> OwnRun:
    """Run in the other process, which has torch."""
    recorder = importlib.import_module("stepladder.labs.equipment.recorder")
    with (recorder.ranks_recorded if several else recorder.recorded)(folder):
        rows = lesson.measure()
    return OwnRun(rows, recorder.read_acts(folder))
