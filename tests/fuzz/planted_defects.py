"""The defects to plant: a repair undone, or a line of the engine broken."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Change:
    """A text of a file under src/stepladder, and what takes its place."""

    file: str
    right: str
    wrong: str


@dataclass(frozen=True)
class Defect:
    words: str
    changes: tuple[Change, ...]


def defect(words: str, *changes: tuple[str, str, str]) -> Defect:
    return Defect(words, tuple(Change(*change) for change in changes))


DEFECTS: tuple[Defect, ...] = ()
