"""The runs of a dashboard: the folders it was given and the runs found in them.

A run is read when it is first opened. A limited number stay in memory; the least recently opened is
dropped, and read again when it is opened.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from stepladder.errors import RecordError
from stepladder.record import journal_path
from stepladder.record.journal import read_line

from .journal_index import JournalIndex
from .run_facts import STALE_SECONDS

MAX_IN_MEMORY = 8  # runs in memory
RESCAN_SECONDS = 3.0
POLL_SECONDS = 0.4  # between checks for appended lines
TAIL_BYTES = 2**16  # of a journal that was not opened, in which its end is looked for


class RunList:
    """Run folders by their name on the page."""

    def __init__(self, folders: Sequence[str | Path]) -> None:
        self.roots = [Path(folder) for folder in folders]
        self.runs: dict[str, Path] = {}
        self.indexes: dict[str, JournalIndex] = {}  # the most recently opened is last
        self.lock = threading.Lock()
        self.scanned = 0.0
        for root in self.roots:
            if not is_empty(root):  # it gets its first run later
                check_folder(root)
        self.scan()

    def scan(self) -> None:
        """Find and name new runs."""
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

    def folders(self) -> dict[str, Path]:
        with self.lock:
            if time.monotonic() - self.scanned > RESCAN_SECONDS:
                self.scan()
            return dict(self.runs)

    def open(self, name: str) -> JournalIndex | None:
        """The run of that name, which is followed from now on; None if there is none."""
        with self.lock:
            if name not in self.runs:
                return None
            index = self.indexes.pop(name, None)
            if index is None:
                index = JournalIndex(self.runs[name])
                follow_if_present(index)  # one block now, which is all of most runs
            self.indexes[name] = index
            while len(self.indexes) > MAX_IN_MEMORY:
                self.indexes.pop(next(iter(self.indexes)))
            return index

    def if_open(self, name: str) -> JournalIndex | None:
        with self.lock:
            return self.indexes.get(name)

    def follow(self) -> bool:
        """Read a block of every open run; False if there was none."""
        with self.lock:
            indexes = list(self.indexes.values())
        return (
            sum(follow_if_present(index) for index in indexes) > 0
        )  # sum, not any, so that each is read

    def follow_forever(self, stop: threading.Event) -> None:
        while not stop.is_set():
            # A short pause between blocks too, so that requests go first.
            stop.wait(0.001 if self.follow() else POLL_SECONDS)


def follow_if_present(index: JournalIndex) -> bool:
    """Follow a run whose folder may have been deleted; what was read of it stays."""
    try:
        return index.follow()
    except OSError:
        return False


def is_empty(folder: Path) -> bool:
    """Whether this is a folder with nothing in it."""
    try:
        return not any(folder.iterdir())
    except OSError:
        return False


def state_from_journal_tail(folder: Path) -> str:
    """The state of a run that nobody opened, from the end of its journal."""
    try:
        with journal_path(folder).open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL_BYTES))
            lines = file.read(TAIL_BYTES).splitlines(keepends=True)
        age = time.time() - journal_path(folder).stat().st_mtime
    except OSError:
        return "silent"
    for entry in filter(None, map(read_line, reversed(lines))):
        if entry.get("kind") in ("end", "summary"):
            return "failed" if entry.get("failure") else "finished"
        if entry.get("kind") == "start":
            break
    return "empty" if not size else "live" if age < STALE_SECONDS else "silent"


def find_runs(root: Path) -> list[Path]:
    """The folder itself if it is a run, else the runs in it, oldest name first."""
    if journal_path(root).is_file():
        return [root]
    try:
        inside = sorted(root.iterdir())
    except OSError:
        return []
    # os.path.isfile, because Path.is_file raises where this user lacks permission.
    return [folder for folder in inside if os.path.isfile(journal_path(folder))]


def check_run(folder: Path) -> None:
    """Raise if the folder is not itself a run."""
    inside = [one.name for one in find_runs(folder) if one != folder]
    if inside:
        raise RecordError(
            "run folder",
            f"{folder} holds {len(inside)} runs and is none itself",
            f"Name one of them, such as {folder / inside[-1]}.",
        )
    check_folder(folder)


def check_folder(root: Path) -> None:
    """Raise if there is no run in the folder, with the reason."""
    if runs := find_runs(root):
        if runs == [root]:
            journal_path(root).open("rb").close()  # raises if this user may not read it
        return
    if not root.exists():
        problem = f"{root} does not exist"
    elif not root.is_dir():
        problem = f"{root} is a file, not a folder"
    else:
        problem = f"{root} holds no run: no {journal_path('').name} in it or one folder below"
    raise RecordError("run folder", problem, "Name a folder that a run wrote, such as runs/first.")
