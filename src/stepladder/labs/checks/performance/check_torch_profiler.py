"""Checks of the profile: what is sorted, which steps the trace has, and what was planted."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from torch.profiler import ProfilerActivity, profile

from stepladder.labs.equipment.lab_ranks import hushed
from stepladder.labs.equipment.planted_operator import PlantedStep, planted
from stepladder.labs.grading.check_words import Mistake, expect, expect_close, is_times, written

MISTAKES = (
    Mistake(
        "operators are sorted by total time",
        'return sorted(rows, key=lambda row: row["self ms"], reverse=True)[:count]',
        'return sorted(rows, key=lambda row: row["total ms"], reverse=True)[:count]',
        "its total time is that of the operators it calls",
    ),
    Mistake(
        "the first steps are recorded, too",
        "plan = schedule(wait=1, warmup=1, active=RECORDED)",
        "plan = schedule(wait=0, warmup=1, active=STEPS - 1)",
        "the first steps load libraries and fill caches",
    ),
    Mistake(
        "the profiler is not told that a step is over",
        "            found.step()\n",
        "            pass\n",
        "the schedule never came to the steps to record",
    ),
    Mistake(
        "the gain is taken to be the step over its slowest operator",
        'whole / (whole - top(rows, 1)[0]["self ms"])',
        'whole / top(rows, 1)[0]["self ms"]',
        "what remains is the rest of the step",
    ),
)


def row(operator: str, calls: int, total: float, own: float) -> dict[str, Any]:
    return {"operator": operator, "calls": calls, "total ms": total, "self ms": own}


PROFILE = [
    row("aten::linear", 4, 9.0, 0.5),
    row("aten::addmm", 4, 6.0, 5.5),
    row("aten::t", 4, 2.5, 2.0),
    row("aten::tanh", 4, 8.0, 8.0),
    row("aten::add_", 40, 5.0, 5.0),
]


def check_the_order(lesson: ModuleType) -> None:
    """The operators come in the order of what they took themselves."""
    found = written(lesson.top(list(PROFILE), 3), "top")
    names = [each["operator"] for each in found]
    expect(
        names[:1] != ["aten::linear"],
        "aten::linear comes first by your order, but its total "
        "time is that of the operators it calls: sort by self time.",
    )
    wanted = ["aten::tanh", "aten::addmm", "aten::add_"]
    expect(names == wanted, f"the worst three are {', '.join(wanted)}, not {', '.join(names)}.")


def check_the_gain(lesson: ModuleType) -> None:
    """Without its slowest operator the step takes what the others take."""
    found = written(lesson.gain(list(PROFILE)), "gain")
    expect(
        not is_times(found, 21 / 8, 1) and not is_times(found, 30.5 / 8, 1),
        f"{found:.3g}: what remains is the rest of the step, not its slowest part.",
    )
    half = [
        row("aten::tanh", 1, 5.0, 5.0),
        row("aten::add", 1, 5.0, 3.0),
        row("aten::sub", 1, 2.0, 2.0),
    ]
    expect_close(lesson.gain(half), 2.0, "the gain where the slowest operator takes half")
    quarter = [row("aten::tanh", 1, 8.0, 8.0), *(row(f"aten::{n}", 1, 6.0, 6.0) for n in "abcd")]
    expect_close(lesson.gain(quarter), 4 / 3, "the gain where it takes a quarter")


def check_the_steps_recorded(lesson: ModuleType) -> None:
    """The trace has the third, fourth and fifth step, and no other."""
    with tempfile.TemporaryDirectory() as folder, hushed():
        trace = Path(folder) / "trace.json"
        recorded = lesson.record(PlantedStep(0), trace)
        expect(
            trace.exists(),
            "no trace was written: the schedule never came to the steps to "
            "record. Is the profiler told after every step?",
        )
        events = json.loads(trace.read_text())["traceEvents"]
    names = {str(event.get("name", "")) for event in events}
    steps = sorted(int(name.split("#")[1]) for name in names if name.startswith("ProfilerStep#"))
    expect(
        not {0, 1} & set(steps),
        f"steps {steps} are in the trace, counted from 0: the first "
        "steps load libraries and fill caches, so wait for one and warm up for one.",
    )
    expect(
        steps == [2, 3, 4],
        f"steps {steps} are in the trace, counted from 0, not [2, 3, 4]: is there a schedule?",
    )
    mine = {each["operator"]: each["calls"] for each in lesson.rows_of(recorded)}
    with hushed(), profile(activities=[ProfilerActivity.CPU]) as once:
        PlantedStep(0)()
    theirs = {one.key: one.count for one in once.key_averages()}
    for name in ("aten::addmm", "aten::mm"):
        expect_close(mine.get(name, 0), 3 * theirs[name], f"calls of {name} in three steps", rtol=0)


def check_the_planted_operator(lesson: ModuleType) -> None:
    """Whichever operator was planted, the profile names it."""
    for seed in (1, 2, 5):
        with tempfile.TemporaryDirectory() as folder, hushed():
            found = lesson.record(PlantedStep(seed), Path(folder) / "trace.json")
        worst = lesson.top(lesson.rows_of(found), 1)[0]["operator"]
        expect(
            worst == planted(seed),
            f"the profile of step {seed} names {worst}: that is not the "
            "operator that takes most of its time.",
        )
