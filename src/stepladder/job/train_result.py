"""What a training run came to, as a value: the return of `train`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stepladder.job.summary.forecast_comparison import ComparisonRow
from stepladder.job.summary.run_cost import RunCost
from stepladder.job.summary.run_speed import RunSpeed
from stepladder.plan import Plan
from stepladder.record import Forecast, Memory
from stepladder.world import StopSignals

LAST_STEP = "the last step"


@dataclass(frozen=True, slots=True)
class TrainResult:
    """One finished, or stopped, training run.

    Memory and step time are there twice, as forecast before the first step and as measured; None
    stands for what could not be known.
    """

    folder: Path
    checkpoint: Path  # the last one saved
    plan: Plan
    device: str  # this rank's, such as cpu or cuda:0
    steps: int  # taken in the run's life
    stopped_by: str  # a signal's name, or "the last step"
    training_loss: float | None  # of the last report
    validation_loss: float | None  # at the end; None where the run was stopped
    seconds: float  # from opening the recipe to the end
    training_seconds: float  # of it, taking steps and evaluating between them
    speed: RunSpeed
    peak_flops_per_second: float | None  # that MFU is a share of
    peak_measured: bool  # by this run's probe, rather than from the device table
    cost: RunCost | None
    forecast: Forecast | None
    no_forecast_because: str  # empty where there is one
    memory: Memory | None  # measured in one step, by owner
    step_seconds: float | None  # median
    data_seconds: float | None  # of it, waiting for a batch
    comparison: tuple[ComparisonRow, ...]  # forecast beside measured, by owner and cause
    losses: tuple[tuple[int, float], ...]  # step and training loss of each report
    evaluations: tuple[tuple[int, float], ...]  # step and validation loss
    notes: Mapping[str, str]  # such as the longest sequence, fragmentation
    sample: str = ""  # text that a byte-level model continued
    calibration_update: str = ""  # how this run corrected its device's calibration
    stop_message: str = ""  # how fast a signal was answered

    @property
    def stopped(self) -> bool:
        """Whether a signal ended the run before its last step."""
        return self.stopped_by != LAST_STEP

    @property
    def mfu(self) -> float | None:
        return self.speed.mfu

    @property
    def tokens_per_second(self) -> float | None:
        return self.speed.tokens_per_second

    def figures(self) -> dict[str, Any]:
        """The closing figures under the names that are displayed and kept in the journal."""
        return {
            "steps": self.steps,
            "training loss": self.training_loss,
            "validation loss": float("nan")
            if self.validation_loss is None
            else self.validation_loss,
            **self.speed.figures(),
            **(self.cost.figures() if self.cost else {}),
            "seconds": round(self.seconds, 1),
            **self.notes,
            "stopped by": self.stopped_by,
            "checkpoint": str(self.checkpoint),
            "plot": str(self.folder / "loss.png") if self.losses else "none",
        }

    def to_dict(self) -> dict[str, Any]:
        """The closing figures, the plan, and forecast beside measured, as plain values."""
        rows = [{**asdict(row), "error": row.error} for row in self.comparison]
        return {**self.figures(), "plan": str(self.plan), "comparison": rows}


def describe_stop(signal: str, stop: StopSignals, saved: Path) -> str:
    """How long it took to leave, against how long it may take."""
    asked = f" in {stop.seconds:.2f} s" if stop.received else ""  # else another rank was asked
    allowed = f" (run.grace_seconds allows {stop.grace_seconds:g})"
    return f"{signal}: {saved.name} saved{asked}{allowed}"
