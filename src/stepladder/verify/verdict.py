"""What a proof returns: its rows, whether all of them are the same, and a table to print."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from .certificate.certify import certify
from .compare_precisions import Comparison
from .course import Course
from .locate.difference import Difference, Location
from .locate.find_first import locate
from .parity_verdict import Sameness
from .resume_verdict import Resumption

Row = TypeVar("Row", Sameness, Resumption, Comparison)


@dataclass(frozen=True)
class Verdict(ABC, Generic[Row]):
    """Rows of a proof. It is true where all of them are the same, and prints as a table."""

    model: str  # what was trained
    steps: int  # of every run
    rows: tuple[Row, ...]

    @property
    def same(self) -> bool:
        """Whether nothing differs by more than rounding allows."""
        return all(row.same for row in self.rows)

    @property
    @abstractmethod
    def worst(self) -> Row:
        """The row that is furthest from what it should be."""

    @property
    @abstractmethod
    def reasons(self) -> tuple[str, ...]:
        """A sentence for every row that is not the same; nothing where all are."""

    @abstractmethod
    def table(self) -> list[list[str]]:
        """The heading and the cells of every row."""

    def to_dict(self) -> dict[str, Any]:
        """Everything in it, as JSON can hold it."""
        rows = [{**asdict(row), "same": row.same} for row in self.rows]
        return {"model": self.model, "steps": self.steps, "same": self.same, "rows": rows}

    def __bool__(self) -> bool:
        return self.same

    def __str__(self) -> str:
        ending = "same" if self.same else f"{sum(not row.same for row in self.rows)} not the same"
        title = f"{self.model}, {self.steps} steps: {ending}"
        return "\n".join([title, *aligned(self.table()), *self.reasons])


@dataclass(frozen=True)
class ParityVerdict(Verdict[Sameness]):
    """Whether plans compute what one device computes: a row for each plan and optimizer."""

    courses: tuple[Course, ...] = field(default=(), repr=False)  # one for each row, to run again

    @property
    def worst(self) -> Sameness:
        return max(self.rows, key=lambda row: excess(row.loss, row.tolerance, bool(row.problem)))

    @property
    def reasons(self) -> tuple[str, ...]:
        said = [f"{row.plan} ({row.optimizer}): {row.reason}" for row in self.rows if not row.same]
        return tuple(dict.fromkeys(said))

    def table(self) -> list[list[str]]:
        heading = [*("plan", "optimizer", "ranks", "loss", "norm", "parameters", "buffers"),
                   "allowed", "verdict"]  # fmt: skip
        cells = [
            [row.plan, row.optimizer, str(row.ranks), *map(short, (row.loss, row.norm)),
             *map(short, (row.parameters, row.buffers, row.tolerance)), row.verdict]
            for row in self.rows
        ]  # fmt: skip
        return [heading, *cells]

    def locate(self) -> Difference | None:
        """The first tensor in order of computing that differs by more than rounding explains.

        Runs the plans that differ again, step by step: what every module takes and returns, the
        gradients of it, of parameters and the optimizer's state are compared with the plain loop's
        under the name they have there. Where every plan is the same, all of them are run again.
        None where nothing is found.
        """
        found = (location.difference for location in self.locations())
        return next((difference for difference in found if difference), None)

    def certify(self, path: str | Path) -> Path:
        """Write a certificate: these plans, taken once more with a hash of every parameter after
        each step, and these verdicts. `check_certificate` replays it on another machine."""
        return certify(self.model, self.courses, [row.verdict for row in self.rows]).write(path)

    def locations(self) -> list[Location]:
        """As `locate`, plan by plan, with how much was compared and what could not be."""
        ran = [pair for pair in zip(self.rows, self.courses) if not pair[0].problem]
        differ = [course for row, course in ran if not row.same]
        return locate(differ or [course for _, course in ran])


@dataclass(frozen=True)
class ResumeVerdict(Verdict[Resumption]):
    """Whether a run that was killed and resumed is the run that was never stopped."""

    @property
    def worst(self) -> Resumption:
        return max(self.rows, key=lambda row: excess(row.loss, row.tolerance, not row.same))

    @property
    def reasons(self) -> tuple[str, ...]:
        return tuple(
            f"{row.plan}: {said}"
            for row in self.rows
            if not row.same
            for said in row.different or (row.problem or "the losses differ",)
        )

    def table(self) -> list[list[str]]:
        heading = ["plan", "ranks", "killed in step", "resumed at", "loss", "parameters",
                   "from a plain loop", "verdict"]  # fmt: skip
        cells = [
            [row.plan, *map(listed, (row.ranks, row.killed_in, row.resumed_at)), short(row.loss),
             short(row.parameters), "" if row.plain is None else short(row.plain), row.verdict]
            for row in self.rows
        ]  # fmt: skip
        return [heading, *cells]


@dataclass(frozen=True)
class PrecisionVerdict(Verdict[Comparison]):
    """Whether a precision trains as the reference does, by the loss on data neither has seen."""

    @property
    def worst(self) -> Comparison:
        return max(self.rows, key=lambda row: abs(row.verdict.difference))

    @property
    def reasons(self) -> tuple[str, ...]:
        return tuple(str(row) for row in self.rows if not row.same)

    def table(self) -> list[list[str]]:
        heading = ["precision", "validation loss", "difference", "verdict"]
        cells = [
            [str(row.other), f"{row.runs[1].validation_loss:.4f}",
             f"{row.verdict.difference:+.2%}", row.verdict.word]
            for row in self.rows
        ]  # fmt: skip
        first = self.rows[0]
        known = [str(first.reference), f"{first.runs[0].validation_loss:.4f}", "", "reference"]
        return [heading, known, *cells]


def excess(value: float, allowed: float, broken: bool) -> float:
    """How often the allowed difference fits into the one there is."""
    if broken or math.isnan(value):
        return math.inf
    return value / allowed if allowed else (math.inf if value else 0.0)


def short(value: float) -> str:
    return f"{value:.1e}" if math.isfinite(value) else ""


def listed(numbers: Sequence[int]) -> str:
    return " → ".join(map(str, numbers))


def aligned(table: Sequence[Sequence[str]]) -> list[str]:
    """Rows of one width for every column."""
    widths = [max(map(len, column)) for column in zip(*table)]
    return ["  ".join(cell.ljust(w) for cell, w in zip(row, widths)).rstrip() for row in table]
