"""A run's forecast beside what was measured of it.

The forecast is made before the first step. Memory is measured in the second, a real step of the
run, which is left out of the timing because measuring slows it down; the first step will not do,
since the optimizer has no state yet. Time is the median over the reports. Where a calibration of
this device exists, the run's own step time refines it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from stepladder.measure import MemoryMeter
from stepladder.plan import Plan
from stepladder.planner import check_plan, forecast
from stepladder.record import (
    Calibration,
    Forecast,
    Memory,
    Report,
    calibration_path,
    correction_key,
    load_calibration,
)
from stepladder.record.calibration import HOST
from stepladder.train import Run, facts_for
from stepladder.train.tuning.planner_inputs import cluster_for, speeds_for

from .run_speed import median, thin

MEASURED_STEP = 1  # whose memory is measured; counted from 0 since the run was opened
NEGLIGIBLE = 1e-5  # share of memory, such as a number that ranks exchange: it has no row
ENOUGH = 3  # reports of steady steps before a run may correct its device's calibration


@dataclass(frozen=True, slots=True)
class ComparisonRow:
    """One quantity as it was forecast and as it was measured; None where it is not known."""

    name: str
    forecast: float | None
    measured: float | None
    unit: str  # bytes, seconds, tokens/s, or run seconds for the whole run

    @property
    def error(self) -> float | None:
        """By what share the forecast was too high (+) or too low (-)."""
        if self.forecast is None or not self.measured:
            return None
        return self.forecast / self.measured - 1


@dataclass
class ForecastComparison:
    run: Run
    forecast: Forecast | None
    unknown: str = ""  # why nothing was forecast
    calibration: Calibration | None = None
    vocab: int | None = None
    memory: Memory | None = None  # of the measured step
    first: int = 0  # step since the run was opened
    reports: list[Report] = field(default_factory=list)

    @classmethod
    def start(
        cls, run: Run, plan: Plan, sample: Any = None, calibration: Calibration | None = None
    ) -> ForecastComparison:
        """Forecast a run that has not begun; where that cannot be done, say why."""
        try:
            place = run.world.place
            cluster = replace(
                cluster_for(run.world.device),
                num_nodes=place.num_ranks // place.local_ranks,
                devices_per_node=place.local_ranks,
            )
            facts = facts_for(run.flops.module, sample)  # as it was before any rung
            calibration = calibration or speeds_for(run.world.device, place)
            planned = forecast(facts, check_plan(facts, plan, cluster), cluster, calibration)
        except Exception as unable:  # a foreign module may do anything; its run goes on
            return cls(run, None, str(unable).partition("\n")[0] or type(unable).__name__)
        return cls(run, planned, "", calibration, facts.vocab or None)

    def measure_memory(self, reports: Iterator[Any]) -> Iterator[Any]:
        """The same reports; the memory of one of the steps is measured while it is taken."""
        self.first = self.run.index
        for index in count():
            with self._meter() if index == MEASURED_STEP else nullcontext() as meter:
                report = next(reports, None)
            if report is None:
                return
            self.memory = meter.memory if meter else self.memory
            yield report
            if index == MEASURED_STEP:
                self.run.clock.restart(self.run.index)  # measuring is not part of a step's time

    def _meter(self) -> AbstractContextManager[MemoryMeter]:
        run = self.run
        return MemoryMeter(run.module, run.optimizer, run.world.device, vocab=self.vocab)

    def add(self, report: Report) -> None:
        """Take in a report, unless it covers the measured step or the warm-up."""
        if report.step > self.first + MEASURED_STEP:
            self.reports.append(report)
            thin(self.reports)

    @property
    def step_seconds(self) -> float | None:
        return median([report.seconds for report in self.reports])

    @property
    def data_seconds(self) -> float | None:
        return median([report.data_seconds for report in self.reports])

    def measured(self) -> dict[str, Any]:
        """The journal's entry beside the forecast."""
        return {
            "memory": self.memory and self.memory.by_owner(),
            "step_seconds": self.step_seconds,
            "data_seconds": self.data_seconds,
            "tokens_per_second": median([r.tokens_per_second for r in self.reports]),
        }

    def rows(self) -> list[ComparisonRow]:
        """Each owner of memory and each cause of time, forecast beside measured."""
        planned = self.forecast
        rows = memory_rows(planned.memory if planned else None, self.memory)
        causes = planned.time.by_cause() if planned and planned.time else {}
        known = {"data": self.data_seconds}
        for cause, seconds in causes.items():
            if seconds or known.get(cause):
                name = cause.replace("_", " ")
                rows.append(ComparisonRow(name, seconds, known.get(cause), "seconds"))
        whole = planned.time.step_seconds if planned and planned.time else None
        rate = planned.tokens_per_second if planned else None
        tokens = median([report.tokens_per_second for report in self.reports])
        return [
            *rows,
            ComparisonRow("step", whole, self.step_seconds, "seconds"),
            ComparisonRow("tokens/s", rate, tokens, "tokens/s"),
        ]

    def refine(self) -> str | None:
        """Correct this device's calibration by the run's step time; a sentence on the change.

        Only one that was kept is corrected: what was measured on a busy machine serves one process.
        """
        whole = self.forecast.time if self.forecast else None
        kept = load_calibration(self.calibration.device) if self.calibration else None
        if kept is None or whole is None or len(self.reports) < ENOUGH:
            return None
        assert self.step_seconds is not None and self.data_seconds is not None
        pace = correction_key(whole, self.run.plan.precision.compute)
        ratio = (self.step_seconds - self.data_seconds) / whole.step_seconds
        better = kept.refined(pace, ratio)
        better.save(calibration_path(better.device))
        found = better.corrections[pace]
        what = "the host's launches" if pace == HOST else f"{pace} forecasts"
        return (
            f"calibration of {better.device}: {what} × {found.factor:.2f} "
            f"after {found.runs} run{'s' * (found.runs > 1)}"
        )


def memory_rows(planned: Memory | None, measured: Memory | None) -> list[ComparisonRow]:
    owners = [
        owner
        for memory in (planned, measured)
        if memory
        for owner, size in memory.by_owner().items()
        if size > NEGLIGIBLE * memory.peak_bytes
    ]
    rows = [
        ComparisonRow(
            owner,
            planned.by_owner()[owner] if planned else None,
            measured.by_owner()[owner] if measured else None,
            "bytes",
        )
        for owner in dict.fromkeys(owners)
    ]
    peaks = (planned.peak_bytes if planned else None, measured.peak_bytes if measured else None)
    return [*rows, ComparisonRow("memory", *peaks, "bytes")]
