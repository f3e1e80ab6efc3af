"""What a run's journal and metrics cost of a step of 20 ms: must stay below 1 %.

A step is a real one of a small GPT, its rows chosen so that it takes about 20 ms here. With and
without take turns; every step is written down, ten times as often as a run does by default.
Printed: the time that writing took a step, by its own clock and as the difference of medians.
Run: python benchmarks/training/journal_cost.py [--steps 300] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import date
from functools import partial
from pathlib import Path

import torch

from stepladder.job.monitoring.memory_watch import MemoryWatch
from stepladder.job.monitoring.step_instruments import StepInstruments
from stepladder.job.summary.forecast_comparison import ForecastComparison
from stepladder.model import build
from stepladder.record import Journal, Report
from stepladder.train import Run, climb

STEP_SECONDS = 0.020
SEQUENCE = 64
LIMIT = 0.01


def rows_for(run: Run, seconds: float) -> int:
    """Rows of a batch whose step takes about so long."""
    rows = 1
    while step_seconds(run, rows) < seconds:
        rows += max(1, rows // 4)
    return rows


def step_seconds(run: Run, rows: int) -> float:
    return statistics.median(timed(lambda: take(run, rows)) for _ in range(7))


def take(run: Run, rows: int) -> Report:
    tokens = torch.zeros(rows, SEQUENCE, dtype=torch.long)
    return run.step((tokens, tokens)).read()


def timed(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    run = climb(
        build("gpt-tiny", sequence=SEQUENCE), loss="cross_entropy", plan="fp32", device="cpu"
    )
    rows = rows_for(run, STEP_SECONDS)
    comparison = ForecastComparison(run, None)
    plain, written, spent = [], [], []
    with tempfile.TemporaryDirectory() as folder, Journal(folder) as journal:
        watch = MemoryWatch(run.world.device)
        with StepInstruments(run, comparison) as instruments:

            def write(report: Report) -> None:
                journal.write("step", **report.to_dict())
                list(watch.add(report))
                instruments.read(report, journal)

            for _ in range(options.steps):
                plain.append(timed(lambda: take(run, rows)))
                began = time.perf_counter()
                report = take(run, rows)
                spent.append(timed(partial(write, report)))
                written.append(time.perf_counter() - began)
        size = (Path(folder) / "journal.jsonl").stat().st_size / options.steps
    cost = statistics.median(spent)
    found = {
        "date": date.today().isoformat(),
        "machine": f"{os.cpu_count()} CPU cores",
        "step_ms": statistics.median(plain) * 1e3,
        "rows": rows,
        "written_us_a_step": cost * 1e6,
        "written_us_a_step_mean": statistics.fmean(spent) * 1e6,
        "share": cost / statistics.median(plain),
        "share_mean": statistics.fmean(spent) / statistics.median(plain),
        "difference_of_medians_us": (statistics.median(written) - statistics.median(plain)) * 1e6,
        "bytes_a_step": size,
        "within_limit": cost / statistics.median(plain) < LIMIT,
    }
    print(json.dumps(found, indent=2))
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")
    raise SystemExit(0 if found["within_limit"] else 1)


if __name__ == "__main__":
    main()
