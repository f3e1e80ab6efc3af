"""A journal's lines with their places, as far as it is written; torn and foreign ones counted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

from stepladder.record.journal import read_line

BLOCK = 2**19  # bytes read in one go
LONGEST = 2**24  # a line beyond this is no line


class Line(NamedTuple):
    entry: dict[str, Any]
    start: int
    end: int


@dataclass
class Lines:
    """Reads what was appended since the last time."""

    path: Path
    position: int = 0  # after the last whole line
    bad: int = 0  # lines that are no entry
    skipping: bool = False  # inside a line that is too long

    def next_block(self) -> list[Line]:
        """The whole lines of about the next block; none where nothing was appended."""
        with self.path.open("rb") as file:
            file.seek(self.position)
            block = file.read(BLOCK)
            while block and b"\n" not in block and len(block) < LONGEST:
                more = file.read(BLOCK)
                if not more:
                    break
                block += more
        whole = block.rfind(b"\n") + 1
        if not whole:
            if len(block) >= LONGEST:
                self.position += len(block)
                self.skipping = True
            return []
        return self._split(block[:whole])

    def _split(self, block: bytes) -> list[Line]:
        found = []
        for text in BytesIO(block):
            start, self.position = self.position, self.position + len(text)
            entry = None if self.skipping else parse(text)
            self.skipping = False
            if entry is None:
                self.bad += 1
            else:
                found.append(Line(entry, start, self.position))
        return found


def lines_between(path: Path, start: int, end: int) -> Iterator[Line]:
    """The entries in a stretch of a journal."""
    with path.open("rb") as file:
        file.seek(start)
        while start < end and (text := file.readline(LONGEST)):
            entry, begin, start = parse(text), start, start + len(text)
            if entry is not None:
                yield Line(entry, begin, start)


def parse(text: bytes) -> dict[str, Any] | None:
    """The entry a line holds, or None."""
    entry = read_line(text)
    return entry if entry is not None and isinstance(entry.get("kind"), str) else None
