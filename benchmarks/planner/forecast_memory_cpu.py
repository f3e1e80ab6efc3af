"""Peak memory forecast against peak memory measured, on this machine's processor.

    python benchmarks/planner/forecast_memory_cpu.py [--write]

Every case of forecast_cases trains a few real steps; a diary of storages says what stood at the
peak and who owned it. The forecast sees the module on the meta device and the plan, nothing else.
Errors are (forecast - measured) / measured: a forecast may be high, never low.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from datetime import date
from pathlib import Path

import torch

from forecast_cases import CASES, Case, forecast_case, measure_case
from stepladder.hardware import Cluster
from stepladder.record import Memory

RESULTS = Path(__file__).parents[1] / "results" / "planner_memory.md"
MIB = 2**20
ONE = Cluster.parse("1 x CPU")


def main() -> None:
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument("--write", action="store_true", help="put the table into results/")
    reader.add_argument("--model", help="only the cases of this model")
    options = reader.parse_args()
    torch.set_num_threads(1)
    began = time.perf_counter()
    chosen = [case for case in CASES if options.model in (None, case.model)]
    rows = []
    for case in chosen:
        forecast = forecast_case(case, ONE).memory
        measured = measure_case(case, "cpu", steps=0).memory
        rows.append((case, forecast, measured))
        print(line(*rows[-1]), flush=True)
    text = summary(rows, time.perf_counter() - began)
    print(text)
    if options.write:
        table = "\n".join(line(*row) for row in rows)
        RESULTS.write_text(f"{heading()}\n\n{text}\n\n{HEAD}\n{table}\n")


HEAD = "| case | measured MiB | forecast MiB | error | furthest owner |\n|---|---:|---:|---:|---|"


def line(case: Case, forecast: Memory, measured: Memory) -> str:
    error = forecast.allocated_bytes / measured.allocated_bytes - 1
    apart = {owner: size for owner, size in (measured - forecast).items() if owner != "reserved"}
    owner, size = max(apart.items(), key=lambda item: abs(item[1]))
    return (
        f"| {case} | {measured.allocated_bytes / MIB:.1f} | {forecast.allocated_bytes / MIB:.1f} "
        f"| {error:+.1%} | {owner} {-size / MIB:+.1f} |"
    )


def summary(rows: list[tuple[Case, Memory, Memory]], seconds: float) -> str:
    errors = [f.allocated_bytes / m.allocated_bytes - 1 for _, f, m in rows]
    sizes = [abs(error) for error in errors]
    return (
        f"{len(rows)} cases in {seconds:.0f} s: median error {statistics.median(sizes):.1%}, "
        f"worst {max(sizes):.1%}, furthest below the truth {min(*errors, 0.0):+.1%}. "
        f"Targets: 3 %, 8 %, -2 %."
    )


def heading() -> str:
    return (
        f"# Peak memory, forecast against measured\n\n{date.today()}, {processor()}, one core, "
        f"torch {torch.__version__}. "
        "Command: `python benchmarks/planner/forecast_memory_cpu.py --write`."
    )


def processor() -> str:
    listing = Path("/proc/cpuinfo")
    lines = listing.read_text().splitlines() if listing.exists() else []
    names = [row for row in lines if row.startswith("model name")]
    return names[0].partition(": ")[2] if names else platform.machine()


if __name__ == "__main__":
    main()
