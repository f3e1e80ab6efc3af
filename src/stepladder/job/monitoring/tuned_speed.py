"""Says when a run has come to the speed that its plan had in trials.

The first steps of a compiled plan take as long as the compiler does, and a first report averages
over them. Who reads it would take that for the speed of the run.
"""

from __future__ import annotations

from dataclasses import dataclass

from stepladder.record import Report

REACHED = 1.1  # times the trials' seconds of a step, that a run loses to reading and reporting


@dataclass(slots=True)
class TunedSpeed:
    """Waits for the first report that is as fast as the trials."""

    step_seconds: float | None  # of the trials; None where no plan was tried

    def look(self, report: Report, since_start: float) -> str:
        """A line for the first report of that speed; else nothing."""
        tried = self.step_seconds
        if tried is None or report.seconds > REACHED * tried:
            return ""
        self.step_seconds = None  # said once
        return (
            f"step {report.step}: {1e3 * report.seconds:.3g} ms a step, as in the trials "
            f"({1e3 * tried:.3g} ms), {since_start:.3g} s after the start"
        )
