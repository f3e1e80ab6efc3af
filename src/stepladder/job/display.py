"""How a job is followed from outside: a small protocol, and the display that shows nothing.

The job prints nothing. `stepladder train` hands in a terminal's display; a program may hand in its
own, or none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from stepladder.job.opening.size_run import SizedRun
from stepladder.record import Forecast, Report

from .train_result import TrainResult


@dataclass(frozen=True, slots=True)
class JobStart:
    """What is known of a run before its first step."""

    headline: str  # model, size, device, plan and folder
    steps: int  # the last one's number, plus 1
    first_step: int  # above 0 where the run is resumed
    memory_limit_bytes: int | None
    speaks: bool  # whether this rank speaks for the whole run
    forecast: Forecast | None
    sized: SizedRun | None = None  # where a probe of this machine settled the steps


class Display(Protocol):
    """Follows one rank of a run. Every method but `finish` is called on every rank."""

    def opening(self, text: str) -> None:
        """The machine is being measured before anything else can be shown."""

    def start(self, start: JobStart) -> None:
        """The run is open and takes its first step next."""

    def step(self, step: int) -> None:
        """A step was taken; its numbers may still be on the device."""

    def report(self, report: Report) -> None:
        """A report is due."""

    def run_message(self, text: str) -> None:
        """A sentence about the whole run: one rank is to show it."""

    def rank_message(self, text: str) -> None:
        """A sentence about this rank alone."""

    def stop(self) -> None:
        """No step follows: the last was taken, a signal came, or one failed."""

    def finish(self, result: TrainResult) -> None:
        """The run is saved and summed up. Called on rank 0 only, while the others wait."""


class NoDisplay:
    """Shows nothing."""

    def opening(self, text: str) -> None:
        pass

    def start(self, start: JobStart) -> None:
        pass

    def step(self, step: int) -> None:
        pass

    def report(self, report: Report) -> None:
        pass

    def run_message(self, text: str) -> None:
        pass

    def rank_message(self, text: str) -> None:
        pass

    def stop(self) -> None:
        pass

    def finish(self, result: TrainResult) -> None:
        pass
