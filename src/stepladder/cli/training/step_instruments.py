"""What a run writes down about itself at every report: memory by owner, and each rank's own time.

All of it is at hand by then: nothing here waits for the device or for another rank.
"""

from __future__ import annotations

from typing import Any, Protocol

from torch import nn

from stepladder.measure.stragglers import RankNotes, StragglerWatch
from stepladder.record import Report
from stepladder.rungs import local
from stepladder.train import Run
from stepladder.world import limit_bytes

from .forecast_comparison import Closing

NOTICEABLE = 0.001  # of the peak
LONGEST_SILENCE = 100  # steps without an entry, so that a page's curve reaches the present


class Writes(Protocol):
    def write(self, kind: str, **entry: Any) -> None: ...


class Unwritten:
    """The journal of a rank for which another one writes."""

    def write(self, kind: str, **entry: Any) -> None:
        pass


class Instruments:
    """Open while a run trains."""

    def __init__(self, run: Run, closing: Closing) -> None:
        self.run, self.closing = run, closing
        self.limit = run.plan.memory_bytes or limit_bytes(run.world.device)
        self.parameters = {"parameters": parameter_bytes(run.module)}
        self.watch = StragglerWatch()
        self.notes: RankNotes | None = None
        self.told: dict[str, Any] | None = None  # the last entry about memory

    def __enter__(self) -> Instruments:
        if self.run.world.place.num_ranks > 1:
            called = called_module(self.run)
            self.notes = RankNotes(self.run.world, called, self.run.index).__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        if self.notes is not None:
            self.notes.__exit__(*error)

    def read(self, report: Report, journal: Writes) -> list[str]:
        """Write what is known at this report; the ranks that turned out to be slow."""
        memory = self.memory(report)
        if self.moved(memory):
            self.told = memory
            journal.write("memory", **memory)
        times = self.notes.leave(report) if self.notes is not None else None
        if times is None:
            return []
        journal.write("ranks", **times.to_dict())
        return self.watch.add(times)

    def moved(self, memory: dict[str, Any]) -> bool:
        """Whether memory is worth another entry. It is a peak, which seldom moves: an entry at
        every report would cost as much as the step's own."""
        if self.told is None or self.told["owners"].keys() != memory["owners"].keys():
            return True
        before, now = self.told["owners"], memory["owners"]
        noticeable = NOTICEABLE * self.told["peak_bytes"]
        return (
            any(abs(now[owner] - before[owner]) > noticeable for owner in now)
            or memory["step"] >= self.told["step"] + LONGEST_SILENCE
        )

    def memory(self, report: Report) -> dict[str, Any]:
        """The peak so far by owner: as measured in the watched step, the rest by what it must be.

        On a processor the peak is the whole process's, whose libraries and code are `context`.
        """
        known = self.closing.memory
        held = known.by_owner() if known else self.parameters
        owners = {name: size for name, size in held.items() if size}
        rest = "temporary" if self.run.world.device.type == "cuda" else "context"
        beyond = report.memory_bytes - sum(owners.values())
        owners[rest] = owners.get(rest, 0) + max(beyond, 0)
        return {
            "step": report.step,
            "owners": owners,
            "peak_bytes": report.memory_bytes,
            "limit_bytes": self.limit,
        }


def called_module(run: Run) -> nn.Module:
    """What a step calls; a pipeline has no single one."""
    exchange = getattr(run.climbed.forward_backward, "exchange", None)
    module: nn.Module = getattr(exchange, "module", run.module)
    return module


def parameter_bytes(module: nn.Module) -> int:
    """Of this rank's own parts."""
    return sum(local(parameter).nbytes for parameter in module.parameters())
