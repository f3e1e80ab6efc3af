"""A row of the table, as a value."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """Something that lectures on training at scale describe, and a command that shows it."""

    name: str  # as typed after --only
    what: str
    page: str  # where it is explained: a page of docs, with an anchor if need be
    command: str  # runs on a laptop in about a minute
    shows: str  # regular expression of a line of its output, which must come
    lab: str = ""
    lines: int = 1  # shown from that line on
    exit_code: int = 0  # 2: the command refuses, and that is the point
    before: str = ""  # a command that is run first, in the same folder


@dataclass(frozen=True, slots=True)
class Part:
    title: str
    rows: tuple[Row, ...]
