"""A lab and a course, as values: what the list shows. No torch, so that listing takes a blink."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Picture:
    """Which columns of a lab's numbers are drawn: one line, or one bar a row where x is words.

    With `shade` cells instead: a panel for each value of `by`, in it a cell at (x, y) a row.
    """

    x: str
    y: tuple[str, ...]
    by: str = ""  # one line for each value of this column
    log: str = ""  # "x", "y" or "xy"
    shade: str = ""  # the column that is written in a cell, and makes it darker the more it is


@dataclass(frozen=True, slots=True)
class Lab:
    name: str  # as typed; its files are called the same, with underscores
    title: str
    seconds: int  # the solution's check takes about so long on two laptop cores
    library: str  # what does it properly: a dotted name
    ranks: int = 1  # processes it starts
    rungs: tuple[str, ...] = ()  # files of stepladder.rungs whose idea it teaches
    picture: Picture | None = None

    @property
    def stem(self) -> str:
        return self.name.replace("-", "_")

    @property
    def lesson(self) -> Path:
        """Our solution, in which the learner's parts are marked."""
        return next((HERE / "lessons").glob(f"*/{self.stem}.py"))

    @property
    def course_folder(self) -> str:
        """The folder of its course, under `lessons` and under `checks`."""
        return self.lesson.parent.name


@dataclass(frozen=True, slots=True)
class Course:
    title: str
    labs: tuple[Lab, ...]
