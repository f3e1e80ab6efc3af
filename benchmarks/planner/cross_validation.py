"""Are the planner's constants physics, or a fit to the rows they were chosen on?

    python benchmarks/planner/cross_validation.py [--write]

Each source is held out in turn, then each kind of hardware. The constants that a fit could bend
are chosen anew on the other rows, by walking along one constant after another to the smallest
median error, and what was held out is forecast with them. If its error is close to the one with
the committed constants, these were not made for it.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from published_rows import device_of_row
from published_runs import HERE, RESULTS, markdown, read_run, summarise
from stepladder.planner.time import collective_time as collectives
from stepladder.planner.time import device_speed as speed
from stepladder.planner.time import step_time as time

# Constant: (where it lives, values around the committed one).
CONSTANTS = {
    "EDGES": (speed, (1.0, 1.5, 2.0)),
    "BANDWIDTH": (speed, (0.75, 0.85, 0.92)),
    "ISSUE": (speed, (0.75, 0.8, 0.85, 0.9)),
    "INTERFERENCE": (time, (0.1, 0.2, 0.3)),
    "STRAGGLING": (time, (0.0, 0.01, 0.02)),
    "INSIDE": (collectives, (0.7, 0.82, 0.9)),
    "BETWEEN": (collectives, (0.6, 0.75, 0.9)),
    "CONGESTION": (collectives, (0.0, 0.05, 0.1)),
}
JOULES = {1.95: (1.75, 1.95, 2.15), 1.6: (1.4, 1.6, 1.8)}  # 7 nm, 4 nm
ROUNDS = 2

Values = dict[str, float]


def committed() -> Values:
    own = {name: getattr(module, name) for name, (module, _) in CONSTANTS.items()}
    return {**own, **{f"joules {joules}": joules for joules in JOULES}}


def choices() -> dict[str, tuple[float, ...]]:
    own = {name: values for name, (_, values) in CONSTANTS.items()}
    return {**own, **{f"joules {joules}": values for joules, values in JOULES.items()}}


@contextmanager
def constants(values: Values) -> Iterator[None]:
    """Forecast with these constants, then put the committed ones back."""
    before, processes = committed(), dict(speed.PROCESSES)
    try:
        for name, (module, _) in CONSTANTS.items():
            setattr(module, name, values[name])
        renamed = {values.get(f"joules {j}", j): families for j, families in processes.items()}
        speed.PROCESSES.clear()
        speed.PROCESSES.update(renamed)
        yield
    finally:
        for name, (module, _) in CONSTANTS.items():
            setattr(module, name, before[name])
        speed.PROCESSES.clear()
        speed.PROCESSES.update(processes)


def errors(rows: list[dict[str, str]], values: Values) -> list[float]:
    with constants(values):
        found = (read_run(row).error for row in rows)
        return [error for error in found if error is not None]


def fit(rows: list[dict[str, str]]) -> Values:
    """Walk along one constant after another to the smallest median error over sources."""
    best = committed()
    score = balanced(rows, best)
    for _ in range(ROUNDS):
        for name, values in choices().items():
            for value in values:
                tried = {**best, name: value}
                if value != best[name] and (found := balanced(rows, tried)) < score:
                    best, score = tried, found
    return best


def balanced(rows: list[dict[str, str]], values: Values) -> float:
    """The mean over sources of their median errors, so that the largest source does not rule."""
    sources = sorted({row["source"] for row in rows})
    medians = []
    for source in sources:
        own = errors([row for row in rows if row["source"] == source], values)
        medians.append(statistics.median(abs(error) for error in own))
    return statistics.mean(medians)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=Path, default=HERE / "published.csv")
    parser.add_argument("--write", action="store_true", help="keep the report")
    options = parser.parse_args()
    with options.rows.open() as file:
        rows = [row for row in csv.DictReader(file) if row["oom"] != "y"]
    timed = [row for row in rows if row["step_time_s"] or row["tokens_per_s_per_gpu"]]
    report = cross_validate(timed)
    print(report)
    if options.write:
        (RESULTS / "planner_crossvalidation.md").write_text(report)
    return 0


def cross_validate(rows: list[dict[str, str]]) -> str:
    title = "# The planner's constants, chosen without the rows they are tried on"
    when = f"{datetime.date.today()}, `python benchmarks/planner/cross_validation.py --write`."
    by_source = held_out(rows, lambda row: row["source"])
    by_hardware = held_out(rows, device_of_row)
    pieces = (title, when, "## By source", by_source, "## By hardware", by_hardware)
    return "\n\n".join(pieces) + "\n"


def held_out(rows: list[dict[str, str]], key: Callable[[dict[str, str]], str]) -> str:
    """Each group forecast with constants that were chosen on the others."""
    lines, every, moved = [], [], []
    for name in sorted({key(row) for row in rows}):
        test = [row for row in rows if key(row) == name]
        chosen = fit([row for row in rows if key(row) != name])
        changed = {n: v for n, v in chosen.items() if v != committed()[n]}
        moved.append(f"- without {name}: {changed or 'nothing moved'}")
        fresh, own = errors(test, chosen), errors(test, committed())
        every += fresh
        lines.append([name, *summarise("", fresh)[1:4], *summarise("", own)[2:4]])
    whole = errors(rows, committed())
    lines.append(["all", *summarise("", every)[1:4], *summarise("", whole)[2:4]])
    head = ["held out", "rows", "median", "90th percentile", "committed: median", "90th percentile"]
    return markdown(head, lines) + "\n\n" + "\n".join(moved)


if __name__ == "__main__":
    sys.exit(main())
