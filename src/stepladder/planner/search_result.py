"""The result of a search: plans that fit, fastest first, and rejected plans with their reasons."""

from __future__ import annotations

from dataclasses import dataclass

from stepladder.errors import PlanError
from stepladder.hardware import Cluster
from stepladder.plan import Plan
from stepladder.record import Calibration, Forecast
from stepladder.record.html_table import html_table
from stepladder.workload import Facts

GIB = 2**30
SHOWN = 5  # plans that a person is shown


@dataclass(frozen=True, slots=True)
class RankedPlan:
    """A plan that fits, and how long it would take."""

    plan: Plan
    seconds: float  # of a step; on a device of unknown speed it only ranks
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class RejectedPlan:
    plan: Plan
    reason: str
    peak_bytes: int | None = None  # where it is memory that was lacking


@dataclass(frozen=True, slots=True)
class Choices:
    facts: Facts
    cluster: Cluster
    batch: int
    ranked: tuple[RankedPlan, ...]
    rejected: tuple[RejectedPlan, ...]
    forecasts: tuple[Forecast, ...]  # of the first of `ranked`
    calibration: Calibration | None = None
    instead: Choices | None = None  # where nothing fits: the smallest cluster on which it would

    @property
    def best(self) -> RankedPlan:
        """The fastest plan that fits, or an error that says what would."""
        if not self.ranked:
            raise nothing_fits(self)
        return self.ranked[0]

    @property
    def num_plans(self) -> int:
        return len(self.ranked) + len(self.rejected)

    @property
    def title(self) -> str:
        fit = f"{len(self.ranked):,} of {self.num_plans:,} plans fit"
        return f"{self.facts.name} on {self.cluster}, batch {self.batch:,}: {fit}"

    def __str__(self) -> str:
        if not self.ranked:
            return str(nothing_fits(self))
        rows = [
            f"{place}. {found.listed()}"
            for place, found in enumerate(self.forecasts[:SHOWN], start=1)
        ]
        return "\n".join([self.title, *rows, *self.forecasts[0].price_notes()])

    def _repr_html_(self) -> str:
        shown = [found.figures() for found in self.forecasts[:SHOWN]]
        columns = list(dict.fromkeys(name for found in shown for name in found))
        rows = [
            [found.plan, *(numbers.get(name, "") for name in columns)]
            for found, numbers in zip(self.forecasts, shown)
        ]
        return html_table(self.title, rows, ["plan", *columns])


def nothing_fits(choices: Choices) -> PlanError:
    """Say what is lacking, and the smallest cluster that would do."""
    problem = f"none of {choices.num_plans} plans fits {choices.facts.name} on {choices.cluster}"
    short = [each.peak_bytes for each in choices.rejected if each.peak_bytes is not None]
    if short:
        problem += f"; the smallest needs {min(short) / GIB:.1f} GiB a device"
    elif choices.rejected:
        problem += f", first because {choices.rejected[0].reason.rstrip('.')}"
    if choices.instead is None:
        return PlanError("cluster", problem, "Use devices with more memory, or a smaller model.")
    remedy = f"The smallest that does: {choices.instead.cluster}, '{choices.instead.best.plan}'."
    return PlanError("cluster", problem, remedy)
