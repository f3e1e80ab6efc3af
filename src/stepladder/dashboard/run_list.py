"""The runs a page shows: the folders it was given and the runs found in them.

A run is read when somebody looks at it. Only so many stay in memory; the one nobody looked at for
longest goes, and is read again when it is asked for.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from stepladder.errors import RecordError
from stepladder.record import journal_path

from .journal_index import JournalIndex

KEPT = 8  # runs in memory
RESCAN_SECONDS = 3.0
PAUSE_SECONDS = 0.4  # between looks at what was appended


class Gallery:
    """Run folders by the name they have on the page."""

    def __init__(self, folders: Sequence[str | Path]) -> None:
        self.roots = [Path(folder) for folder in folders]
        self.runs: dict[str, Path] = {}
        self.indexes: dict[str, JournalIndex] = {}  # the last one looked at comes last
        self.lock = threading.Lock()
        self.scanned = 0.0
        for root in self.roots:
            check_folder(root)
        self.scan()

    def scan(self) -> None:
        """Name the runs that have come since."""
        known = {folder.resolve() for folder in self.runs.values()}
        for root in self.roots:
            for folder in find_runs(root):
                if folder.resolve() not in known:
                    self.runs[self._name(folder)] = folder
                    known.add(folder.resolve())
        self.scanned = time.monotonic()

    def _name(self, folder: Path) -> str:
        name = plain = folder.resolve().name or "run"
        number = 2
        while name in self.runs:
            name, number = f"{plain} ({number})", number + 1
        return name

    def listed(self) -> dict[str, Path]:
        with self.lock:
            if time.monotonic() - self.scanned > RESCAN_SECONDS:
                self.scan()
            return dict(self.runs)

    def open(self, name: str) -> JournalIndex | None:
        """The run of that name, being read from now on; None where there is none."""
        with self.lock:
            if name not in self.runs:
                return None
            index = self.indexes.pop(name, None)
            if index is None:
                index = JournalIndex(self.runs[name])
                follow_quietly(index)  # a block now: most runs are shown whole at first sight
            self.indexes[name] = index
            while len(self.indexes) > KEPT:
                self.indexes.pop(next(iter(self.indexes)))
            return index

    def opened(self, name: str) -> JournalIndex | None:
        with self.lock:
            return self.indexes.get(name)

    def follow(self) -> bool:
        """Read a block of every run that is looked at; whether there was any."""
        with self.lock:
            indexes = list(self.indexes.values())
        return sum(follow_quietly(index) for index in indexes) > 0  # every one: none waits

    def follow_forever(self, stop: threading.Event) -> None:
        while not stop.is_set():
            # A moment between blocks, too: whoever asks for a page goes first.
            stop.wait(0.001 if self.follow() else PAUSE_SECONDS)


def follow_quietly(index: JournalIndex) -> bool:
    """Follow a run whose folder may be gone by now: what was read of it stays."""
    try:
        return index.follow()
    except OSError:
        return False


def find_runs(root: Path) -> list[Path]:
    """The folder itself if it is a run, else the runs in it, oldest name first."""
    if journal_path(root).is_file():
        return [root]
    try:
        inside = sorted(root.iterdir())
    except OSError:
        return []
    # Not Path's, which raises where one of them is not this user's to look at.
    return [folder for folder in inside if os.path.isfile(journal_path(folder))]


def check_run(folder: Path) -> None:
    """Refuse what is not itself a run."""
    inside = [one.name for one in find_runs(folder) if one != folder]
    if inside:
        raise RecordError(
            "run folder",
            f"{folder} holds {len(inside)} runs and is none itself",
            f"Name one of them, such as {folder / inside[-1]}.",
        )
    check_folder(folder)


def check_folder(root: Path) -> None:
    """Refuse what holds no run, saying what it is."""
    if runs := find_runs(root):
        if runs == [root]:
            journal_path(root).open("rb").close()  # raises where this user may not read it
        return
    if not root.exists():
        problem = f"{root} does not exist"
    elif not root.is_dir():
        problem = f"{root} is a file, not a folder"
    else:
        problem = f"{root} holds no run: no {journal_path('').name} in it or one folder below"
    raise RecordError("run folder", problem, "Name a folder that a run wrote, such as runs/first.")
