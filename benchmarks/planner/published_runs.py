"""How far the planner is from training runs that other teams measured and published.

    python benchmarks/planner_published.py [--rows FILE.csv ...] [--write] [--list]

Every row becomes a workload, a plan and a cluster (`published_rows.py`), and its forecast step time
is set against the published one, its forecast memory against the published peak. The planner's
constants know nothing of a row. A row that cannot be read is named, and the others go on.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import statistics
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import log
from pathlib import Path

from published_rows import (
    GIB,
    Row,
    cluster_of_row,
    counts_allocated,
    device_of_row,
    facts_of_row,
    missing_fact,
    number,
    plans_of_row,
    published_gib,
    published_seconds,
    whole_row,
)  # fmt: skip
from published_software import software_of_row
from stepladder.errors import StepladderError
from stepladder.planner import forecast
from stepladder.record import Forecast

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results"
FILES = [HERE / "published.csv", HERE / "more.csv"]


@dataclass(frozen=True, slots=True)
class Run:
    """One published row and its forecast."""

    row: Row
    device: str
    seconds: float | None  # published
    forecast: Forecast
    share: float  # the row's batch over the forecast one

    @property
    def error(self) -> float | None:
        """Forecast over published, less one."""
        if self.seconds is None or self.forecast.time is None:
            return None
        return self.forecast.time.step_seconds * self.share / self.seconds - 1

    @property
    def source(self) -> str:
        return self.row["source"].split(" (")[0]

    @property
    def ran_out(self) -> bool:
        return self.row["oom"] == "y"

    @property
    def peak_gib(self) -> float:
        """What torch would report: the runtime's own memory is not in it."""
        memory = self.forecast.memory
        allocated = counts_allocated(self.row)
        return (memory.allocated_bytes if allocated else memory.reserved_bytes) / GIB

    @property
    def most_gib(self) -> float:
        """The upper end of the same."""
        assert self.forecast.peak_bytes is not None
        return (self.forecast.peak_bytes.high - self.forecast.memory.context) / GIB

    @property
    def least_gib(self) -> float:
        assert self.forecast.peak_bytes is not None
        return (self.forecast.peak_bytes.low - self.forecast.memory.context) / GIB

    @property
    def time_held(self) -> bool | None:
        """Whether the interval of the step's time holds the published one."""
        span = self.forecast.step_seconds
        if self.seconds is None or span is None:
            return None
        return span.low <= self.seconds / self.share <= span.high

    @property
    def time_off(self) -> float | None:
        """How far the published time is from the forecast one, over the interval's end there."""
        span, told = self.forecast.step_seconds, self.forecast.time
        if self.seconds is None or span is None or told is None:
            return None
        real, middle = self.seconds / self.share, told.step_seconds
        return log(real / middle) / abs(log((span.high if real > middle else span.low) / middle))

    @property
    def peak_held(self) -> bool | None:
        """Whether the interval of the peak holds the published one."""
        peak = published_gib(self.row)
        return None if peak is None or self.ran_out else self.least_gib <= peak <= self.most_gib


def read_run(row: Row) -> Run:
    device = device_of_row(row)
    facts, cluster, plans = facts_of_row(row), cluster_of_row(row, device), plans_of_row(row)
    software = software_of_row(row, device)
    every = [forecast(facts, plan, cluster, software=software) for plan in plans]
    found = next((each for each in every if each.fits), every[0])
    rows = number(row, "batch" if row["image_size"] else "global_batch_seqs")
    share = rows / (plans[0].batch.sequences or 1)
    return Run(row, device, published_seconds(row, facts), found, share)


def read_runs(rows: Iterable[dict[str, str | None]]) -> tuple[list[Run], list[str]]:
    """The runs, and why other rows could not be read."""
    runs, refused = [], []
    for row in map(whole_row, rows):
        try:
            runs.append(read_run(row))
        except StepladderError as error:
            refused.append(f"{row['id']}: {error}")
    return runs, refused


def summarise(name: str, errors: Iterable[float]) -> list[str]:
    signed = sorted(errors)
    sizes = sorted(abs(error) for error in signed)
    tenth = sizes[min(round(0.9 * (len(sizes) - 1)), len(sizes) - 1)]
    bias = statistics.median(signed)
    cells = (statistics.median(sizes), tenth, sizes[-1])
    return [name, str(len(sizes)), *(f"{cell:.1%}" for cell in cells), f"{bias:+.1%}"]


def table(runs: list[Run], key: Callable[[Run], str]) -> list[list[str]]:
    names = sorted({key(run) for run in runs})
    groups = {
        name: [r.error for r in runs if key(r) == name and r.error is not None] for name in names
    }
    rows = [summarise(name, errors) for name, errors in groups.items() if errors]
    return [*rows, summarise("all", [r.error for r in runs if r.error is not None])]


def markdown(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


HEAD = ["", "rows", "median", "90th percentile", "worst", "bias"]
SHORT = 0.02  # of a published peak, by which a forecast may lie below it


def write_report(runs: list[Run], refused: list[str], command: str) -> str:
    worst = sorted((r for r in runs if r.error is not None), key=lambda r: -abs(r.error or 0))[:18]
    rows = [
        [r.row["id"], r.device, r.row["n_gpus"], r.row["model"], f"{r.error:+.0%}"] for r in worst
    ]
    pieces = [
        "# The planner against published runs",
        f"{datetime.date.today()}, `{command}`. Errors are of the step time.",
        "## By source\n\n" + markdown(HEAD, table(runs, lambda run: run.source)),
        "## By hardware\n\n" + markdown(HEAD, table(runs, lambda run: run.device)),
        "## Intervals and fits\n\n" + held_summary(runs),
        "## Memory\n\n" + memory_summary(runs),
        peaks_table(runs),
        "## Farthest off\n\n" + markdown(["row", "device", "devices", "model", "error"], rows),
    ]
    if refused:
        pieces.append("## Not understood\n\n" + "\n".join(f"- {each}" for each in refused))
    return "\n\n".join(pieces) + "\n"


def held_summary(runs: list[Run]) -> str:
    """How many published figures lie in their intervals, and how often `fits` was right."""
    times = [held for run in runs if (held := run.time_held) is not None]
    peaks = [held for run in runs if (held := run.peak_held) is not None]
    right = [run.forecast.fits != run.ran_out for run in runs]
    named = (("step times in the interval", times), ("peaks in the interval", peaks))
    counted = [*named, ("fits, or does not, as forecast", right)]
    return "\n".join(
        f"- {words}: {sum(which)} of {len(which)}, {sum(which) / len(which):.1%}"
        for words, which in counted
        if which
    )


def memory_summary(runs: list[Run]) -> str:
    ran = [run for run in runs if not run.ran_out]
    peaks = [(run, peak) for run in ran if (peak := published_gib(run.row))]
    low = [run for run, peak in peaks if run.peak_gib < peak]
    short = [run for run, peak in peaks if run.peak_gib < (1 - SHORT) * peak]
    beyond = [run for run, peak in peaks if run.most_gib < peak]
    loose = [run for run, peak in peaks if peak != float(run.row["peak_mem_gb"])]
    no_fit = [run for run in ran if not run.forecast.fits]
    promised = [run for run in runs if run.ran_out and run.forecast.fits]
    lines = [
        (f"rows that ran: {len(ran)}; forecast not to fit", no_fit),
        (f"rows that ran out of memory: {len(runs) - len(ran)}; forecast to fit", promised),
        (f"rows with a published peak: {len(peaks)}; forecast below it", low),
        (f"of those, by more than {SHORT:.0%}", short),
        ("of those, beyond the forecast's interval", beyond),
        (
            f"rows in a GB that nobody defined, taken for 10^9 bytes: {len(loose)}; beyond the "
            "interval if it were a GiB",
            [run for run in loose if run.most_gib < float(run.row["peak_mem_gb"])],
        ),
    ]
    return "\n".join(
        f"- {words}: {len(which)} {[run.row['id'] for run in which] or ''}".rstrip()
        for words, which in lines
    )


def peaks_table(runs: list[Run]) -> str:
    """Each published peak beside the forecast of what torch would report as reserved."""
    rows = []
    for run in runs:
        peak = published_gib(run.row)
        if peak is None or run.ran_out:
            continue
        off = run.peak_gib / peak - 1
        missing = missing_fact(run.row) if off < -SHORT else ""
        span = f"{run.least_gib:.1f} to {run.most_gib:.1f}"
        cells = (f"{peak:.1f}", f"{run.peak_gib:.1f}", f"{off:+.0%}", span)
        rows.append([run.row["id"], run.row["model"], *cells, missing])
    head = [
        "row",
        "model",
        "published, GiB",
        "forecast",
        "",
        "interval",
        "what the row leaves open",
    ]
    return markdown(head, rows)


def plot(runs: list[Run], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 7))
    for source in sorted({run.source for run in runs}):
        own = [r for r in runs if r.source == source and r.error is not None]
        forecasts = [(1 + (r.error or 0)) * (r.seconds or 0) for r in own]
        axes.scatter([r.seconds for r in own], forecasts, s=14, label=source)
    ends = [0.1, 400]
    axes.plot(ends, ends, color="grey", linewidth=1)
    for factor in (0.8, 1.25):
        axes.plot(ends, [end * factor for end in ends], color="grey", linewidth=0.5, linestyle="--")
    axes.set(xscale="log", yscale="log", xlabel="published step, s", ylabel="forecast step, s")
    axes.legend()
    figure.savefig(path, dpi=120, bbox_inches="tight")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=Path, nargs="+", default=FILES, help="files of rows")
    parser.add_argument("--write", action="store_true", help="keep the report and draw the scatter")
    parser.add_argument("--list", action="store_true", help="print every row")
    options = parser.parse_args()
    runs, refused = read_runs(row for path in options.rows for row in csv.DictReader(path.open()))
    if options.list:
        for run in runs:
            print_run(run)
    report = write_report(runs, refused, "python benchmarks/planner_published.py --write")
    print(report)
    if options.write:
        (RESULTS / "planner_published.md").write_text(report)
        plot(runs, RESULTS / "planner_published.png")
    errors = sorted(abs(run.error) for run in runs if run.error is not None)
    if not errors:
        return 1
    met = statistics.median(errors) <= 0.10 and errors[round(0.9 * (len(errors) - 1))] <= 0.25
    return 0 if met else 1


def print_run(run: Run) -> None:
    time, row = run.forecast.time, run.row
    parts = time.by_cause().items() if time else ()
    causes = " ".join(f"{c}={s / time.step_seconds:.0%}" for c, s in parts if s and time)
    error = "" if run.error is None else f"{run.error:+.1%}"
    memory = f"{run.peak_gib:.0f} GiB (published {published_gib(row)})"
    words = (row["id"], run.device, row["n_gpus"], row["model"], error, memory, causes)
    print(*words, run.forecast.plan if run.forecast.fits else "DOES NOT FIT")


if __name__ == "__main__":
    sys.exit(main())
