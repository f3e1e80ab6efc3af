"""An index of one run's journal, kept up to date by reading only what was appended.

A resumed run repeats steps; the later ones replace the earlier. A journal that shrank or was
replaced belongs to another run and is read from its beginning.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from stepladder.record import journal_path

from .downsample import Table
from .journal_lines import JournalLine, JournalReader, lines_between
from .samples import Samples

MAX_DETAIL_ROWS = 2400  # up to which rows are read from the journal again instead of buckets
MERGE_BYTES = 2**16  # buckets closer than this in the journal are read at once
EVENTS = 1000  # the newest ones kept
RECENT = 32  # entries of ranks to average
SPARSE = 2**14  # buckets for kinds that are written less often than steps
FIELDS = (
    "loss", "grad_norm", "lr", "loss_scale", "tokens_per_second", "flops_per_second", "mfu", "hfu",
    "seconds", "data_seconds", "memory_bytes", "expert_load", "dead_experts",
)  # fmt: skip
LOGGED = "logged"  # values by names that a training loop chose
MAX_TABLES = 100  # of all kinds and names
LAST_ONLY = (
    "forecast",
    "measured",
    "summary",
    "timeline",
    "profile",
    "end",
)  # only the last one counts


class JournalIndex:
    """One run folder, read once and then followed."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, journal_path(folder)
        self.lock = threading.Lock()
        self._reset()

    def _reset(self) -> None:
        self.lines = JournalReader(self.path)
        self.identity: tuple[int, int] | None = None
        self.size = 0
        self.entries = 0
        self.revision = 0  # grows with every change
        self.tables = {kind: Table(SPARSE) for kind in ROWS if kind != LOGGED}
        self.tables["step"] = Table(names=FIELDS)
        self.latest: dict[str, dict[str, Any]] = {}
        self.starts: list[dict[str, Any]] = []
        self.events: deque[dict[str, Any]] = deque(maxlen=EVENTS)
        self.recent_ranks: deque[dict[str, Any]] = deque(maxlen=RECENT)
        self.samples = Samples()
        self.newest: dict[str, Any] = {}  # step entry

    @property
    def steps(self) -> Table:
        return self.tables["step"]

    @property
    def read_share(self) -> float:
        """The share of the journal that has been read."""
        return min(self.lines.position / self.size, 1.0) if self.size else 1.0

    def follow(self) -> bool:
        """Read the next appended block; False if there is none."""
        with self.lock:
            seen = self.path.stat()
            identity = (seen.st_dev, seen.st_ino)
            if self.identity not in (None, identity) or seen.st_size < self.lines.position:
                revision = self.revision
                self._reset()
                self.revision = revision + 1
            self.identity, self.size = identity, seen.st_size
            if seen.st_size == self.lines.position:
                return False
            position = self.lines.position
            for line in self.lines.next_block():
                try:
                    self._read_line(line)
                except (ValueError, TypeError, ArithmeticError, LookupError, AttributeError):
                    self.lines.bad += 1  # written by other hands; the rest can still be read
                else:
                    self.entries += 1
            if self.lines.position == position:
                return False  # only a partial line so far
            self.revision += 1
            return True

    def _read_line(self, line: JournalLine) -> None:
        entry = line.entry
        kind = entry["kind"]
        if kind in ROWS:
            for table, row in rows_of(entry).items():
                self._read_row(table, row, line)
        elif kind == "start":
            self._read_start(entry)
        elif kind in LAST_ONLY:
            self.latest[kind] = entry
            if kind == "end" and entry.get("failure"):
                self._add_event(entry, "failure", f"ended by {entry['failure']}")
        elif kind == "sample":
            self.samples.add(entry)
        elif kind == "event":
            text = str(entry.get("text", ""))
            self._add_event(entry, classify_event(text), text)
        elif kind == "save":
            self._add_event(entry, "save", f"saved {entry.get('path', '')}")

    def _add_event(self, entry: dict[str, Any], sort: str, text: str) -> None:
        step = entry.get("step")
        step = step if isinstance(step, int) else self.steps.last_step
        self.events.append({"step": step, "sort": sort, "text": text[:500]})

    def _read_start(self, entry: dict[str, Any]) -> None:
        step = entry.get("step")
        if self.starts and isinstance(step, int):
            self._add_event(entry, "restart", f"went on from step {step}")
            for kind in self.tables:
                self._rewind(kind, step)
        self.starts = [*self.starts[-99:], entry]
        for ended in ("summary", "end"):  # the run continues
            self.latest.pop(ended, None)

    def _read_row(self, kind: str, row: dict[str, Any], line: JournalLine) -> None:
        step = line.entry.get("step")
        if type(step) is not int or not self._has_table(kind):
            return
        table = self.tables[kind]
        if table.last_step is not None and step <= table.last_step:
            self._rewind(kind, step)
        table.add(step, row, line.start, line.end)
        if kind == "step":
            self._read_step(line.entry)
        elif kind == "ranks":
            self.recent_ranks.append(line.entry)
        elif kind in ("memory", "evaluation", "device"):
            self.latest[kind] = line.entry

    def _has_table(self, kind: str) -> bool:
        """Whether there is a table of this kind; values that were logged get one by name."""
        if kind not in self.tables and len(self.tables) < MAX_TABLES:
            self.tables[kind] = Table(SPARSE)
        return kind in self.tables

    def _read_step(self, entry: dict[str, Any]) -> None:
        self.newest = entry
        if entry.get("skipped") is True:
            self._add_event(entry, "skipped", "update left out: a gradient was not finite")
        elif isinstance(entry.get("loss"), str):  # a journal writes NaN and Inf as strings
            self._add_event(entry, "nonfinite", f"loss is {entry['loss'][:20]}")

    def _rewind(self, kind: str, step: int) -> None:
        table = self.tables[kind]
        place = table.rewind(step)
        if place:
            self._fill(table, kind, lines_between(self.path, *place), before=step)

    def _fill(self, table: Table, kind: str, lines: Iterable[JournalLine], *, before: int) -> None:
        """Add a kind's rows from a part of the journal that is read again."""
        for line in without_replaced_steps(line for line in lines if kind in rows_of(line.entry)):
            if line.entry["step"] < before:
                table.add(line.entry["step"], rows_of(line.entry)[kind], line.start, line.end)

    def window(self, kind: str, first: int, last: int, points: int) -> dict[str, Any]:
        """A range of a kind's columns; row by row if it is short enough."""
        with self.lock:
            return self._window(kind, first, last, points)

    def windows(self, first: int, last: int, points: int) -> dict[str, dict[str, Any]]:
        """The same range of every kind, consistently."""
        with self.lock:
            return {kind: self._window(kind, first, last, points) for kind in self.tables}

    def _window(self, kind: str, first: int, last: int, points: int) -> dict[str, Any]:
        table = self.tables[kind]
        span = table.span(first, last)
        coarse = table.rows_per_bucket > 1 and len(span) < points
        if (
            kind == "step"
            and span
            and coarse
            and sum(table.rows[span.start : span.stop]) <= MAX_DETAIL_ROWS
        ):
            table = self._read_again(kind, table, span)
        return table.window(first, last, points)

    def _read_again(self, kind: str, table: Table, span: range) -> Table:
        detail = Table(2 * MAX_DETAIL_ROWS, names=FIELDS)
        places = byte_ranges(table, span)
        lines = (line for place in places for line in lines_between(self.path, *place))
        self._fill(detail, kind, lines, before=table.lasts[span.stop - 1] + 1)
        return detail


def without_replaced_steps(lines: Iterable[JournalLine]) -> list[JournalLine]:
    """Rows without those replaced later: a row that goes back replaces all from its step on."""
    kept: list[JournalLine] = []
    for line in lines:
        step = line.entry.get("step")
        if type(step) is not int:
            continue
        while kept and kept[-1].entry["step"] >= step:
            kept.pop()
        kept.append(line)
    return kept


def byte_ranges(table: Table, span: range) -> list[tuple[int, int]]:
    """The byte ranges of buckets in the journal; close ones are merged."""
    found: list[tuple[int, int]] = []
    for bucket in span:
        start, end = table.starts[bucket], table.ends[bucket]
        if found and 0 <= start - found[-1][1] < MERGE_BYTES:
            found[-1] = (found[-1][0], end)
        else:
            found.append((start, end))
    return found


def plain_row(entry: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in entry.items() if name not in ("kind", "step")}


def memory_row(entry: dict[str, Any]) -> dict[str, Any]:
    return {**as_dict(entry.get("owners")), "peak": entry.get("peak_bytes")}


def collectives_row(entry: dict[str, Any]) -> dict[str, Any]:
    return as_dict(entry.get("seconds"))


def ranks_row(entry: dict[str, Any]) -> dict[str, Any]:
    """The quickest, the mean and the slowest rank, since thousands of columns cannot be read."""
    own = numbers(entry.get("own_seconds"))
    wait = numbers(entry.get("wait_seconds"))
    row: dict[str, Any] = {}
    if own:
        row |= {"quickest": min(own), "mean": sum(own) / len(own), "slowest": max(own)}
    if wait:
        row["wait"] = sum(wait) / len(wait)
    return row


def rows_of(entry: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """An entry's rows by table: its kind's; by name for values that were logged, and for terms."""
    kind: str = entry["kind"]
    if kind not in ROWS:
        return {}
    table = f"{LOGGED} {str(entry.get('name'))[:100]}" if kind == LOGGED else kind
    terms = as_dict(entry.get("terms")) if kind == "step" else {}
    named = {f"{LOGGED} loss/{name[:90]}": {"value": value} for name, value in terms.items()}
    return {table: ROWS[kind](entry), **named}


ROWS = {
    LOGGED: lambda entry: {"value": entry.get("value")},
    "step": lambda entry: entry,
    "evaluation": plain_row,
    "device": plain_row,
    "memory": memory_row,
    "collectives": collectives_row,
    "ranks": ranks_row,
}


def as_dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def numbers(value: Any) -> list[float]:
    kept = value if isinstance(value, list) else []
    return [float(one) for one in kept if isinstance(one, int | float)]


def classify_event(text: str) -> str:
    """The sort of event that a text describes, for its mark on a plot."""
    lowered = text.lower()
    for sort, words in EVENT_WORDS.items():
        if any(word in lowered for word in words):
            return sort
    return "note"


EVENT_WORDS = {
    "memory": ("out of memory", "memory grows", "micro-batch"),
    "skipped": ("skipped", "not finite", "left out"),
    "spike": ("and the last", "spike"),
    "failure": ("failed", "lost", "damaged"),
    "slow": ("slower than",),
}
