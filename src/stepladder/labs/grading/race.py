"""What a solution costs: processor time and memory of its own numbers, in a process of its own.

Processor time, of the ranks it starts too, since it hardly depends on what else the machine does.
"""

from __future__ import annotations

import resource
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from stepladder.errors import RecordError
from stepladder.labs.lab import Lab

from .own_process import Problem, ask

PROCESSES = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
KIB = 1024  # what Linux counts resident memory in


@dataclass(frozen=True, slots=True)
class RaceResult:
    """One solution's cost."""

    seconds: float  # of the processor
    bytes: int  # by which the peak of resident memory grew


def race(lab: Lab, path: Path, *, limit_seconds: float) -> RaceResult:
    """Run a file's `measure` and take its cost."""
    found = ask(cost, lab, path, limit_seconds)
    if not isinstance(found, Problem):
        return found
    remedy = f"'stepladder lab check {lab.name}' says what is wrong."
    raise RecordError("race", f"{path.name} does not run to its end: {found.text}", remedy)


def cost(lesson: ModuleType) -> RaceResult:
    """Run in the other process."""
    seconds, held = processor_seconds(), peak_bytes()
    lesson.measure()
    return RaceResult(processor_seconds() - seconds, max(0, peak_bytes() - held))


def processor_seconds() -> float:
    """Of this process and of those it started that have ended."""
    spent = [resource.getrusage(who) for who in PROCESSES]
    return sum(each.ru_utime + each.ru_stime for each in spent)


def peak_bytes() -> int:
    """Of this process, and of the largest that it started."""
    return KIB * sum(resource.getrusage(who).ru_maxrss for who in PROCESSES)
