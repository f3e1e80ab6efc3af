"""Profile a training step with torch.profiler.profile, and find the slow operator.

Somebody put an operator into a training step that takes most of its time. Reading the code does not
say which one it is; a profile does. Three things make a profile useful:

    a schedule    the first steps load libraries and fill caches: wait for one, let the profiler
                  warm up for another, then record some. After every step the profiler is told so,
                  by its method step()
    self time     an operator that calls others (aten::linear calls aten::addmm) has their time in
                  its total. Its self time is what it did itself: that is where time is lost
    the trace     the same as a picture: a JSON file for chrome://tracing or ui.perfetto.dev

What can be gained is not the slow operator's speed but its share of the step.

Claim: whichever operator is planted, the profile of three steps names it; three steps and no others
are in the trace, and each operator was called as often as in a profile of a step alone.

Predict: The network has four linear layers, and three steps are recorded. In backward each layer
takes aten::mm for its weight's gradient, and for its input's where that is needed; the data needs
none. How many calls of aten::mm does the profile show? [calls; operator = aten::mm]

Often wrong:
- operators are sorted by total time
- the first steps are recorded, too
- the profiler is not told that a step is over
- the gain is taken to be the step over its slowest operator
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch.profiler import ProfilerActivity, profile, schedule

from stepladder.labs.equipment.lab_ranks import hushed
from stepladder.labs.equipment.planted_operator import PlantedStep

STEPS, RECORDED = 5, 3
Row = dict[str, Any]


def record(step: Callable[[], None], trace: Path) -> Any:
    """A profile of the last three of five steps, whose trace is written to a file."""
    # >>> A schedule: one step is waited for, one warms up, three are recorded.
    # ??? torch.profiler.schedule takes three numbers by name: wait, warmup and active.
    # ??? They add up to the five steps.
    plan = schedule(wait=1, warmup=1, active=RECORDED)
    # <<< plan = None
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=plan,
        on_trace_ready=lambda done: done.export_chrome_trace(str(trace)),
    ) as found:
        for _ in range(STEPS):
            step()
            # >>> Tell the profiler that a step is over.
            # ??? The schedule counts steps. Who counts them for it?
            # ??? `found` is the profiler, and has a method for that.
            found.step()
            # <<< pass
    return found


def rows_of(found: Any) -> list[Row]:
    """One row an operator: its calls, its total and its self time in ms, of all recorded steps."""
    return [
        {
            "operator": one.key,
            "calls": one.count,
            "total ms": one.cpu_time_total / 1e3,
            "self ms": one.self_cpu_time_total / 1e3,
        }
        for one in found.key_averages()
        if one.key.startswith("aten::")
    ]


def top(rows: list[Row], count: int) -> list[Row]:
    """The operators in which most time was lost, the worst first."""
    # >>> The first `count` rows, sorted by the right column.
    # ??? Two columns are times. In which of them does aten::linear count what aten::addmm did?
    # ??? sorted takes a key, and can begin with the largest.
    return sorted(rows, key=lambda row: row["self ms"], reverse=True)[:count]
    # <<< return rows[:count]


def gain(rows: list[Row]) -> float:
    """How many times as fast the step is when its slowest operator takes no time at all."""
    # >>> The step's time, over what remains of it.
    # ??? Self times add up to the whole step; total times count many things twice.
    # ??? Take the slowest operator's part away: what remains?
    # ??? If it takes half of the step, the step becomes twice as fast.
    whole = sum(row["self ms"] for row in rows)
    return whole / (whole - top(rows, 1)[0]["self ms"])
    # <<< return ...  # type: ignore[return-value]


def measure() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder, hushed():
        rows = rows_of(record(PlantedStep(seed=1), Path(folder) / "trace.json"))
    shown = [*top(rows, 6), *(row for row in rows if row["operator"] == "aten::mm")]
    return [{**row, "faster without the first": gain(rows)} for row in shown]


if __name__ == "__main__":
    for row in measure():
        print(row)
