"""The loop closed: what was forecast for a run beside what was measured of it.

The forecast is made before the first step. Memory is measured in the second, a real step of the
run, slower for being watched and left out of the timing: the first is not like the others, since
the optimizer has no state yet. Time is what the reports say. Where a calibration of this device
exists, the run's own step time refines it.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from stepladder.cli.results.tables import table
from stepladder.measure import MemoryMeter
from stepladder.plan import Plan
from stepladder.planner import check, forecast
from stepladder.record import (
    Calibration,
    Forecast,
    Memory,
    Report,
    calibration_path,
    load_calibration,
    pace_of,
)
from stepladder.record.calibration import HOST
from stepladder.train import Run, facts_for
from stepladder.train.auto_plan import cluster_for

from .speed_figures import thin

MANY = 10  # times too much: no percentage says more
WATCHED = 1  # of the steps a session takes, counted from 0
ENOUGH = 3  # reports of steady steps before a run may say something of its machine
MIB = 2**20

Row = list[object]


@dataclass
class Closing:
    run: Run
    forecast: Forecast | None
    unknown: str = ""  # why nothing was forecast
    calibration: Calibration | None = None
    vocab: int | None = None
    memory: Memory | None = None  # of the watched step
    first: int = 0  # step of this session
    reports: list[Report] = field(default_factory=list)

    @classmethod
    def start(cls, run: Run, plan: Plan, sample: Any = None) -> Closing:
        """Forecast a run that has not begun; where that cannot be done, say why."""
        try:
            place = run.world.place
            cluster = replace(
                cluster_for(run.world.device),
                num_nodes=place.num_ranks // place.local_ranks,
                devices_per_node=place.local_ranks,
            )
            facts = facts_for(run.flops.module, sample)  # as it was before any rung
            calibration = load_calibration(cluster.device.name)
            said = forecast(facts, check(facts, plan, cluster), cluster, calibration)
        except Exception as unable:  # a foreign module may do anything; its run goes on
            return cls(run, None, str(unable).partition("\n")[0] or type(unable).__name__)
        return cls(run, said, "", calibration, facts.vocab or None)

    def watch(self, reports: Iterator[Any]) -> Iterator[Any]:
        """The same reports, the memory of one step measured on the way."""
        self.first = self.run.index
        for index in count():
            with self._meter() if index == WATCHED else nullcontext() as meter:
                report = next(reports, None)
            if report is None:
                return
            self.memory = meter.memory if meter else self.memory
            yield report
            if index == WATCHED:
                self.run.clock.restart(self.run.index)  # watching is not part of a step's time

    def _meter(self) -> AbstractContextManager[MemoryMeter]:
        run = self.run
        return MemoryMeter(run.module, run.optimizer, run.world.device, vocab=self.vocab)

    def note(self, report: Report) -> None:
        """Count a report that holds no watched step and no warm-up."""
        if report.step > self.first + WATCHED:
            self.reports.append(report)
            thin(self.reports)

    @property
    def step_seconds(self) -> float | None:
        return median([report.seconds for report in self.reports])

    @property
    def data_seconds(self) -> float | None:
        return median([report.data_seconds for report in self.reports])

    def measured(self) -> dict[str, Any]:
        """What the journal keeps beside the forecast."""
        return {
            "memory": self.memory and self.memory.by_owner(),
            "step_seconds": self.step_seconds,
            "data_seconds": self.data_seconds,
            "tokens_per_second": median([r.tokens_per_second for r in self.reports]),
        }

    def rows(self) -> list[Row]:
        """Each owner and cause: forecast, measured, and by how much they differ."""
        said = self.forecast
        rows = memory_rows(said.memory if said else None, self.memory)
        causes = said.time.by_cause() if said and said.time else {}
        known = {"data": self.data_seconds}
        for cause, seconds in causes.items():
            if seconds or known.get(cause):
                rows.append(row(cause.replace("_", " "), seconds, known.get(cause), 1e3, "ms"))
        whole = said.time.step_seconds if said and said.time else None
        rows.append(row("step", whole, self.step_seconds, 1e3, "ms"))
        rate = said.tokens_per_second if said else None
        rows.append(row("tokens/s", rate, self.measured()["tokens_per_second"], 1, ""))
        return rows

    def refine(self) -> str | None:
        """Let the run correct the calibration of its device; says what it did."""
        whole = self.forecast.time if self.forecast else None
        if self.calibration is None or whole is None or len(self.reports) < ENOUGH:
            return None
        assert self.step_seconds is not None and self.data_seconds is not None
        pace = pace_of(whole, self.run.plan.precision.compute)
        ratio = (self.step_seconds - self.data_seconds) / whole.step_seconds
        better = self.calibration.refined(pace, ratio)
        better.save(calibration_path(better.device))
        found = better.corrections[pace]
        what = "the host's launches" if pace == HOST else f"{pace} forecasts"
        return (
            f"calibration of {better.device}: {what} × {found.factor:.2f} "
            f"after {found.runs} run{'s' * (found.runs > 1)}"
        )


def show_closing(closing: Closing, refined: str | None) -> None:
    """The table a run ends with."""
    print()
    table("Forecast and measured", ["what", "forecast", "measured", "off"], closing.rows())
    if closing.unknown:
        print(f"Nothing was forecast: {closing.unknown}")
    elif closing.forecast and closing.forecast.time is None:
        print("\n".join(closing.forecast.reasons), "'stepladder calibrate' measures it.")
    if refined:
        print(refined)


def memory_rows(said: Memory | None, was: Memory | None) -> list[Row]:
    owners = [o for m in (said, was) if m for o, size in m.by_owner().items() if size]
    rows = [
        row(
            owner,
            said.by_owner()[owner] if said else None,
            was.by_owner()[owner] if was else None,
            1 / MIB,
            "MiB",
        )
        for owner in dict.fromkeys(owners)
    ]
    both = (said.peak_bytes if said else None, was.peak_bytes if was else None)
    return [*rows, row("memory", *both, 1 / MIB, "MiB")]


def row(name: str, said: float | None, was: float | None, scale: float, unit: str) -> Row:
    off = "unknown"
    if said is not None and was:
        # Owners are told at the peak; where it comes at another moment, next to nothing is left.
        off = f"{said / was - 1:+.1%}" if said < MANY * was else f"over {MANY} ×"
    return [name, shown(said, scale, unit), shown(was, scale, unit), off]


def shown(value: float | None, scale: float, unit: str) -> str:
    return "unknown" if value is None else f"{value * scale:,.4g} {unit}".rstrip()


def median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None
