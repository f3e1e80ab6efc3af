"""A run's diary: JSON lines, appended, readable while it is written and after it was cut short.

Each line is one object with a `kind` (`step`, `evaluation`, `event`, `forecast`, …). A line is
written with one system call, so a reader sees whole lines; a run killed in the middle of one
leaves a last line without its end, which reading passes over and the next opening cuts away.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stepladder.errors import RecordError

NAME = "journal.jsonl"


class Journal:
    """Appends entries to a run folder's journal."""

    def __init__(self, folder: str | Path) -> None:
        self.path = Path(folder) / NAME
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
            self._file = os.open(self.path, flags, 0o644)
            cut_torn_line(self._file)
        except OSError as refused:
            raise RecordError(
                "run folder",
                f"{self.path.parent} cannot be written ({refused.strerror})",
                "Name another folder, or give this user the right to write there.",
            ) from refused

    def write(self, kind: str, **entry: Any) -> None:
        line = json.dumps({"kind": kind, **clean(entry)}, separators=(",", ":"), default=str)
        os.write(self._file, line.encode() + b"\n")

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def cut_torn_line(file: int) -> None:
    """Drop what a killed writer left after the last whole line."""
    size = os.fstat(file).st_size
    start = max(size - 2**16, 0)
    tail = os.pread(file, size - start, start)
    if tail and not tail.endswith(b"\n"):
        os.ftruncate(file, start + tail.rfind(b"\n") + 1)


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
    path = Path(folder) / NAME
    try:
        lines = path.open("rb")
    except OSError as missing:
        raise RecordError(
            "run folder",
            f"{path} cannot be read ({missing.strerror})",
            "Name a folder that a run wrote, such as runs/first.",
        ) from missing
    with lines:
        for line in lines:
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if isinstance(entry, dict) and (kind is None or entry.get("kind") == kind):
                yield entry
