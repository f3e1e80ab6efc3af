"""A run's diary: JSON lines, appended, readable while it is written and after it was cut short.

Each line is one object with a `kind` (`step`, `evaluation`, `event`, `forecast`, …). A line is
written with one system call, so a reader sees whole lines; a run killed in the middle of one
leaves a last line without its end, which reading passes over and the next opening cuts away. A
folder has one writer at a time; a second one is refused before it touches anything.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stepladder.errors import RecordError

from .folder_lock import FolderLock

NAME = "journal.jsonl"
ENCODER = json.JSONEncoder(separators=(",", ":"), default=str, allow_nan=False)
BLOCK = 2**16  # bytes looked at in one go for the end of the last whole line


class Journal:
    """Appends entries to a run folder's journal."""

    def __init__(self, folder: str | Path) -> None:
        self.path = journal_path(folder)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = FolderLock(self.path.parent)
            self._file = self._open()
        except (OSError, ValueError) as refused:  # ValueError: a NUL in the name
            raise RecordError(
                "run folder",
                f"{self.path.parent} cannot be written ({reason(refused)})",
                "Name another folder, or give this user the right to write there.",
            ) from refused

    def _open(self) -> int:
        try:
            file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            cut_torn_line(file)
        except OSError:
            self._lock.release()
            raise
        return file

    def write(self, kind: str, **entry: Any) -> None:
        data = as_line({"kind": kind, **entry})
        try:
            written = os.write(self._file, data)
        except OSError as refused:
            raise self._unwritten(reason(refused)) from refused
        if written < len(data):
            raise self._unwritten(f"{written} of {len(data)} bytes were taken")

    def _unwritten(self, why: str) -> RecordError:
        return RecordError(
            "journal",
            f"{self.path} does not take another line ({why})",
            "Make room on that disk, then go on with --run.resume true.",
        )

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
            self._lock.release()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def journal_path(folder: str | Path) -> Path:
    """Where a run folder's journal lies."""
    return Path(folder) / NAME


def cut_torn_line(file: int) -> None:
    """Drop what a killed writer left after the last whole line."""
    size = os.fstat(file).st_size
    end = size
    while end and os.pread(file, 1, end - 1) != b"\n":
        start = max(end - BLOCK, 0)
        end = start + os.pread(file, end - start, start).rfind(b"\n") + 1
    if end < size:
        os.ftruncate(file, end)


def reason(refused: OSError | ValueError) -> str:
    return getattr(refused, "strerror", None) or str(refused)


def as_line(entry: dict[str, Any]) -> bytes:
    try:
        line = ENCODER.encode(entry)
    except (ValueError, TypeError):  # a number or a name that JSON has no word for: seldom
        line = ENCODER.encode(clean(entry))
    return line.encode() + b"\n"


def clean(value: Any) -> Any:
    """The value with numbers that JSON has no word for written as strings."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {str(key): clean(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [clean(item) for item in value]
    return value


def read_journal(folder: str | Path, *, kind: str | None = None) -> Iterator[dict[str, Any]]:
    """The journal's whole entries, in order; a torn line is passed over."""
    path = journal_path(folder)
    try:
        with path.open("rb") as lines:
            for line in lines:
                if not line.endswith(b"\n"):  # being written: its end would come as another line
                    return
                entry = read_line(line)
                if entry and (kind is None or entry.get("kind") == kind):
                    yield entry
    except (OSError, ValueError) as missing:
        raise RecordError(
            "run folder",
            f"{path} cannot be read ({reason(missing)})",
            "Name a folder that a run wrote, such as runs/first.",
        ) from missing


def read_line(line: bytes) -> dict[str, Any] | None:
    """The entry a line holds, or None where it is torn or foreign."""
    if not line.endswith(b"\n"):
        return None
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return entry if isinstance(entry, dict) else None
