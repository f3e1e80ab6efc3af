"""Are the planner's constants physics, or a fit to the rows they were chosen on?

    python benchmarks/planner/cross_validation.py [--write]

Each source is held out in turn, then each kind of hardware. The constants that a fit could bend
are chosen anew on the other rows, by walking along one constant after another to the smallest mean
over sources of their median errors, and what was held out is forecast with them. If its error is
close to the one with the committed constants, these were not made for it. So with the width of the
intervals: both ends are stretched, each by what holds nineteen in twenty of the other rows there,
and what was held out lies inside or not.

While constants are chosen, a row's logarithmic error is taken to be the sum of what each of them
does alone, which one forecast of each row with each value gives; what is held out is then forecast
anew with all of them.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import exp, log1p
from pathlib import Path

from published_rows import Row, device_of_row, whole_row
from published_runs import FILES, RESULTS, Run, markdown, read_run, summarise
from stepladder.planner.time import collective_time as collectives
from stepladder.planner.time import device_speed as speed
from stepladder.planner.time import step_time as time

# Constant: (where it lives, values around the committed one).
CONSTANTS = {
    "EDGES": (speed, (1.0, 1.25, 1.5, 2.0)),
    "BANDWIDTH": (speed, (0.75, 0.85, 0.92)),
    "ISSUE": (speed, (0.75, 0.8, 0.85, 0.9)),
    "EXPONENTIALS": (speed, (0.0, 0.31, 0.5)),
    "LAUNCH_SECONDS": (speed, (6e-6, 12e-6, 20e-6)),
    "INTERFERENCE": (time, (0.1, 0.2, 0.3)),
    "STRAGGLING": (time, (0.0, 0.01, 0.02)),
    "INSIDE": (collectives, (0.7, 0.82, 0.9)),
    "BETWEEN": (collectives, (0.6, 0.75, 0.9)),
    "CONGESTION": (collectives, (0.0, 0.05, 0.1)),
}
JOULES = {1.95: (1.75, 1.95, 2.15), 1.6: (1.4, 1.6, 1.8), 1.05: (0.95, 1.05, 1.2)}  # 7, 4, 4 nm
ROUNDS = 2
OUTSIDE = 0.05  # of the rows, at either end of an interval of nine in ten

Values = dict[str, float]
Key = Callable[[Row], str]


@dataclass(frozen=True, slots=True)
class Effects:
    """Each row's logarithmic error with the committed constants, and by how much others move it."""

    committed: list[float]
    moved: dict[tuple[str, float], list[float]]

    def error(self, row: int, values: Values) -> float:
        moves = (self.moved.get(item) for item in values.items())
        return exp(self.committed[row] + sum(m[row] for m in moves if m)) - 1


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


def runs_with(rows: list[Row], values: Values) -> list[Run]:
    with constants(values):
        return [read_run(row) for row in rows]


def errors(runs: list[Run]) -> list[float]:
    return [run.error for run in runs if run.error is not None]


def effects_of(rows: list[Row]) -> Effects:
    own = committed()
    base = [log1p(error) for error in errors(runs_with(rows, own))]
    moved = {}
    for name, values in choices().items():
        for value in values:
            if value != own[name]:
                found = errors(runs_with(rows, {**own, name: value}))
                moved[name, value] = [log1p(e) - b for e, b in zip(found, base)]
    return Effects(base, moved)


def fit(groups: list[list[int]], effects: Effects) -> Values:
    """Walk along one constant after another to the smallest median error over sources."""
    best = committed()
    score = balanced(groups, effects, best)
    for _ in range(ROUNDS):
        for name, values in choices().items():
            for value in values:
                tried = {**best, name: value}
                if value != best[name] and (found := balanced(groups, effects, tried)) < score:
                    best, score = tried, found
    return best


def balanced(groups: list[list[int]], effects: Effects, values: Values) -> float:
    """The mean over sources of their median errors, so that the largest source does not rule."""
    return statistics.mean(
        statistics.median(abs(effects.error(row, values)) for row in rows) for rows in groups
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=Path, nargs="+", default=FILES, help="files of rows")
    parser.add_argument("--write", action="store_true", help="keep the report")
    options = parser.parse_args()
    rows = [whole_row(row) for path in options.rows for row in csv.DictReader(path.open())]
    timed = [row for row in rows if row["oom"] != "y" and read_run(row).error is not None]
    report = cross_validate(timed)
    print(report)
    if options.write:
        (RESULTS / "planner_crossvalidation.md").write_text(report)
    return 0


def source_of(row: Row) -> str:
    return row["source"].split(" (")[0]


def cross_validate(rows: list[Row]) -> str:
    effects = effects_of(rows)
    title = "# The planner's constants, chosen without the rows they are tried on"
    when = f"{datetime.date.today()}, `python benchmarks/planner/cross_validation.py --write`."
    by_source = held_out(rows, effects, source_of)
    by_hardware = held_out(rows, effects, device_of_row)
    pieces = (title, when, "## By source", by_source, "## By hardware", by_hardware)
    return "\n\n".join(pieces) + "\n"


def held_out(rows: list[Row], effects: Effects, key: Key) -> str:
    """Each group forecast with constants that were chosen on the others."""
    lines, moved, own = [], [], committed()
    fresh_runs, inside = list[Run](), list[bool]()
    every = runs_with(rows, own)
    for name in sorted({key(row) for row in rows}):
        test = [row for row in rows if key(row) == name]
        chosen = fit(sources(rows, lambda row, name=name: key(row) != name), effects)
        changed = {n: v for n, v in chosen.items() if v != own[n]}
        moved.append(f"- without {name}: {changed or 'nothing moved'}")
        fresh = runs_with(test, chosen)
        low, high = widths([run for run in every if key(run.row) != name])
        inside += [low <= off <= high for off in offs(fresh)]
        fresh_runs += fresh
        own_runs = [run for run in every if key(run.row) == name]
        lines.append(line(name, fresh, own_runs, inside[-len(test) :], (low, high)))
    lines.append(line("all", fresh_runs, every, inside, widths(every)))
    head = [
        "held out", "rows", "median", "90th percentile", "in the interval",
        "in the one chosen without it", "its ends, over the committed ones",
        "committed: median", "90th percentile",
    ]  # fmt: skip
    return markdown(head, lines) + "\n\n" + "\n".join(moved)


def sources(rows: list[Row], kept: Callable[[Row], bool]) -> list[list[int]]:
    """The rows that are kept, by source."""
    found: dict[str, list[int]] = {}
    for index, row in enumerate(rows):
        if kept(row):
            found.setdefault(source_of(row), []).append(index)
    return list(found.values())


def offs(runs: list[Run]) -> list[float]:
    return [run.time_off for run in runs if run.time_off is not None]


def widths(runs: list[Run]) -> tuple[float, float]:
    """Where the lower and the upper end of the interval would have to be for nine in ten rows,
    as multiples of where they are."""
    ordered = sorted(offs(runs))
    outside = round(OUTSIDE * len(ordered))
    return ordered[outside], ordered[-1 - outside]


def line(
    name: str, fresh: list[Run], own: list[Run], inside: list[bool], ends: tuple[float, float]
) -> list[str]:
    held = sum(bool(run.time_held) for run in fresh) / len(fresh)
    chosen = sum(inside) / len(inside)
    rest = summarise("", errors(own))[2:4]
    cells = (f"{held:.0%}", f"{chosen:.0%}", f"{ends[0]:+.2f}, {ends[1]:+.2f}")
    return [name, *summarise("", errors(fresh))[1:4], *cells, *rest]


if __name__ == "__main__":
    sys.exit(main())
