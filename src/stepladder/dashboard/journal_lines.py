"""Reading a journal's complete lines with their byte offsets; other lines are counted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

from stepladder.record.journal import read_line

BLOCK = 2**19  # bytes read at once
MAX_LINE_BYTES = 2**24  # longer lines are skipped


class JournalLine(NamedTuple):
    """One entry and its byte offsets."""

    entry: dict[str, Any]
    start: int
    end: int


@dataclass
class JournalReader:
    """Reads the lines appended since the last call."""

    path: Path
    position: int = 0  # after the last complete line
    bad: int = 0  # lines that are no entries
    skipping: bool = False  # inside a line that is too long

    def next_block(self) -> list[JournalLine]:
        """The complete lines of about the next block; empty if nothing was appended."""
        with self.path.open("rb") as file:
            file.seek(self.position)
            block = file.read(BLOCK)
            while block and b"\n" not in block and len(block) < MAX_LINE_BYTES:
                more = file.read(BLOCK)
                if not more:
                    break
                block += more
        whole = block.rfind(b"\n") + 1
        if not whole:
            if len(block) >= MAX_LINE_BYTES:
                self.position += len(block)
                self.skipping = True
            return []
        return self._split(block[:whole])

    def _split(self, block: bytes) -> list[JournalLine]:
        found = []
        for text in BytesIO(block):
            start, self.position = self.position, self.position + len(text)
            entry = None if self.skipping else parse_entry(text)
            self.skipping = False
            if entry is None:
                self.bad += 1
            else:
                found.append(JournalLine(entry, start, self.position))
        return found


def lines_between(path: Path, start: int, end: int) -> Iterator[JournalLine]:
    """The entries in a byte range of a journal."""
    with path.open("rb") as file:
        file.seek(start)
        while start < end and (text := file.readline(MAX_LINE_BYTES)):
            entry, begin, start = parse_entry(text), start, start + len(text)
            if entry is not None:
                yield JournalLine(entry, begin, start)


def parse_entry(text: bytes) -> dict[str, Any] | None:
    """The entry of a line, or None if it is none."""
    entry = read_line(text)
    return entry if entry is not None and isinstance(entry.get("kind"), str) else None
