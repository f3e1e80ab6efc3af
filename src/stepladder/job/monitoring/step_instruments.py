"""What a run writes to its journal at every report: memory by owner, and each rank's own time.

All of it is known by then: nothing here waits for the device or for another rank.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from stepladder.job.summary.forecast_comparison import ForecastComparison
from stepladder.measure.stragglers import RankTimeExchange, StragglerWatch
from stepladder.record import Report
from stepladder.record.journal_writer import JournalWriter
from stepladder.rungs import local
from stepladder.train import Run
from stepladder.world import device_memory_bytes

NOTICEABLE = 0.001  # of the peak
MOST_STEPS_BETWEEN = 100  # steps without an entry, so that a page's curve reaches the present


class StepInstruments:
    """Context in which a run trains; reads each report into the journal."""

    def __init__(self, run: Run, comparison: ForecastComparison) -> None:
        self.run, self.comparison = run, comparison
        self.limit = run.plan.memory_bytes or device_memory_bytes(run.world.device)
        self.parameters = {"parameters": parameter_bytes(run.module)}
        self.watch = StragglerWatch()
        self.notes: RankTimeExchange | None = None
        self.written: dict[str, Any] | None = None  # the last entry about memory

    def __enter__(self) -> StepInstruments:
        if self.run.world.place.num_ranks > 1:
            called = called_module(self.run)
            self.notes = RankTimeExchange(self.run.world, called, self.run.index).__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        if self.notes is not None:
            self.notes.__exit__(*error)

    def read(self, report: Report, journal: JournalWriter) -> list[str]:
        """Write what is known at this report; the ranks that turned out to be slow."""
        memory = self.memory(report)
        if self.worth_writing(memory):
            self.written = memory
            journal.write("memory", **memory)
        times = self.notes.leave(report) if self.notes is not None else None
        if times is None:
            return []
        journal.write("ranks", **times.to_dict())
        return self.watch.add(times)

    def worth_writing(self, memory: dict[str, Any]) -> bool:
        """Whether memory changed enough for another entry: a peak seldom moves, and an entry at
        every report would cost as much as the step's own."""
        if self.written is None or self.written["owners"].keys() != memory["owners"].keys():
            return True
        before, now = self.written["owners"], memory["owners"]
        noticeable = NOTICEABLE * self.written["peak_bytes"]
        return (
            any(abs(now[owner] - before[owner]) > noticeable for owner in now)
            or memory["step"] >= self.written["step"] + MOST_STEPS_BETWEEN
        )

    def memory(self, report: Report) -> dict[str, Any]:
        """The peak so far by owner: as measured in the watched step, the rest by what it must be.

        On a processor the peak is the whole process's, whose libraries and code are `context`.
        """
        known = self.comparison.memory
        held = known.by_owner() if known else self.parameters
        owners = {name: size for name, size in held.items() if size}
        rest = "temporary" if self.run.world.device.type == "cuda" else "context"
        beyond = report.rank_memory_bytes - sum(owners.values())
        owners[rest] = owners.get(rest, 0) + max(beyond, 0)
        return {
            "step": report.step,
            "owners": owners,
            "peak_bytes": report.rank_memory_bytes,
            "limit_bytes": self.limit,
        }


def called_module(run: Run) -> nn.Module:
    """What a step calls; a pipeline has no single one."""
    gradient_sync = getattr(run.climbed.forward_backward, "exchange", None)
    module: nn.Module = getattr(gradient_sync, "module", run.module)
    return module


def parameter_bytes(module: nn.Module) -> int:
    """Of this rank's own parts."""
    return sum(local(parameter).nbytes for parameter in module.parameters())
