"""A run's journal: appended JSON lines, readable while the run writes and after a crash.

Each line is one object with a `kind` (`step`, `evaluation`, `event`, `forecast`, …). A line is
written with one system call, so a reader sees complete lines; a run killed while writing one leaves
a partial last line, which readers skip and the next writer truncates. A folder has one writer at a
time; a second one is refused before it changes anything.
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

JOURNAL_FILE = "journal.jsonl"
ENCODER = json.JSONEncoder(separators=(",", ":"), default=str, allow_nan=False)
DEEPEST = 64  # levels of an entry; whoever shows it walks them
BLOCK = 2**16  # bytes read at once when looking for the end of the last complete line


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
            if self.path.is_fifo():  # whoever reads it decides how long a step takes
                raise ValueError(f"{JOURNAL_FILE} is a pipe")
            file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            truncate_partial_line(file)
        except (OSError, ValueError):
            self._lock.release()
            raise
        return file

    def write(self, kind: str, **entry: Any) -> None:
        data = encode_line({"kind": kind, **entry})
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
    """The path of a run folder's journal."""
    return Path(folder) / JOURNAL_FILE


def truncate_partial_line(file: int) -> None:
    """Remove the partial line that a killed writer left at the end."""
    size = os.fstat(file).st_size
    end = size
    while end and os.pread(file, 1, end - 1) != b"\n":
        start = max(end - BLOCK, 0)
        end = start + os.pread(file, end - start, start).rfind(b"\n") + 1
    if end < size:
        os.ftruncate(file, end)


def reason(refused: OSError | ValueError) -> str:
    return getattr(refused, "strerror", None) or str(refused)


def encode_line(entry: dict[str, Any]) -> bytes:
    try:
        line = ENCODER.encode(entry)
    except (ValueError, TypeError):  # NaN, Inf or a key that is no string, which is rare
        line = ENCODER.encode(to_json_safe(entry))
    return line.encode() + b"\n"


def to_json_safe(value: Any) -> Any:
    """The value with NaN and Inf as strings, since JSON has no such numbers."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {str(key): to_json_safe(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json_safe(item) for item in value]
    return value


def read_journal(folder: str | Path, *, kind: str | None = None) -> Iterator[dict[str, Any]]:
    """Yield the journal's entries in order; a partial line is skipped."""
    path = journal_path(folder)
    try:
        if path.is_fifo():  # opening it would wait for its writer
            raise ValueError("it is a pipe")
        with path.open("rb") as lines:
            for line in lines:
                if not line.endswith(b"\n"):  # still being written
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
    """The entry of a line, or None if it is partial or no JSON object."""
    if not line.endswith(b"\n"):
        return None
    try:
        entry = DECODER.decode(line.decode())
    except (ValueError, RecursionError):
        return None
    if not isinstance(entry, dict) or (
        line.count(b"[") + line.count(b"{") > DEEPEST and is_deeper(entry, DEEPEST)
    ):
        return None
    return entry


def read_integer(text: str) -> int | float | str:
    """A whole number; one that no counter reaches is a float, as JavaScript reads it too."""
    return int(text) if len(text) < 16 else read_float(text)


def read_float(text: str) -> float | str:
    """A number, or its text where it is too large to be one, as the journal writes Inf."""
    number = float(text)
    return number if math.isfinite(number) else str(number)


def is_deeper(value: Any, levels: int) -> bool:
    """Whether a value is nested deeper than so many levels."""
    inside = value.values() if isinstance(value, dict) else value
    if not isinstance(value, dict | list):
        return False
    return not levels or any(is_deeper(part, levels - 1) for part in inside)


DECODER = json.JSONDecoder(
    parse_int=read_integer, parse_float=read_float, parse_constant=lambda name: name
)
