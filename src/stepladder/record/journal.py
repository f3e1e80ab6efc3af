"""A run's journal: appended JSON lines, readable while the run writes and after a crash.

Each line is one object with a `kind` (`step`, `evaluation`, `event`, `forecast`, …). A line is
written with one system call, so a reader sees complete lines; a run killed while writing one leaves
a partial last line, which readers skip and the next writer truncates. A folder has one writer at a
time; a second one is refused before it changes anything.

A disk that takes no line for a while does not end the run: lines wait in memory, in order, and are
written with the next one. They are lost, and that is an error, where the disk takes none for
minutes, or none when the journal is closed.
"""

from __future__ import annotations

import errno
import json
import math
import os
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

from stepladder.errors import RecordError

from .folder_lock import FolderLock

JOURNAL_FILE = "journal.jsonl"
ENCODER = json.JSONEncoder(separators=(",", ":"), default=str, allow_nan=False)
DEEPEST = 64  # levels of an entry; whoever shows it walks them
BLOCK = 2**16  # bytes read at once when looking for the end of the last complete line
PATIENCE_SECONDS = 600.0  # that lines wait for a disk that does not take them
CLOSING_SECONDS = 10.0  # that the end of a run waits for it
WAITING_BYTES = 2**26  # of such lines at most


class Journal:
    """Appends entries to a run folder's journal.

    Args:
        patience_seconds: how long lines wait for a disk that does not take them.
    """

    def __init__(self, folder: str | Path, *, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self.path = journal_path(folder)
        self.patience_seconds = patience_seconds
        self._waiting = b""  # lines, or the rest of one, that the disk has not taken
        self._since = 0.0  # when the first of them was refused
        self._writing = threading.Lock()
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
        line = encode_line({"kind": kind, **entry})
        with self._writing:
            if self._file < 0:
                raise self._unwritten(os.strerror(errno.EBADF))
            self._waiting += line
            refused = self._send()
            late = refused and time.monotonic() - self._since > self.patience_seconds
            if late or len(self._waiting) > WAITING_BYTES:
                raise self._unwritten(refused)

    def _send(self) -> str:
        """Write what waits, in order; why not all of it was taken."""
        refused = ""
        if not self._since:
            self._since = time.monotonic()
        try:
            while self._waiting and not refused:
                written = os.write(self._file, self._waiting)
                if 0 < written < len(self._waiting):
                    refused = f"{written} of {len(self._waiting)} bytes were taken"
                self._waiting = self._waiting[written:]
        except OSError as failed:
            refused = reason(failed)
        if not self._waiting:
            self._since = 0.0
        return refused

    def _unwritten(self, why: str) -> RecordError:
        return RecordError(
            "journal",
            f"{self.path} does not take another line ({why})",
            "Make room on that disk, then go on with --run.resume true.",
        )

    def close(self) -> None:
        """Write what waits and release the folder; an error where the disk does not take it."""
        if self._file < 0:
            return
        try:
            patience = min(self.patience_seconds, CLOSING_SECONDS)
            deadline = time.monotonic() + patience
            while self._waiting and (refused := self._send()):
                if time.monotonic() > deadline:
                    raise self._unwritten(refused)
                time.sleep(min(0.1, patience))
        finally:
            os.close(self._file)
            self._file = -1
            self._lock.release()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with suppress(RecordError) if kind else nullcontext():  # the first error is the reason
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
