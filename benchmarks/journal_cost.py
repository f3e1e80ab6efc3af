"""What a run's journal and metrics cost of a step of 20 ms: must stay below 1 %.

A step is 20 ms of products, so that only what is written beside it differs. With and without take
turns; every step is written down, ten times as often as a run does by default. Printed: the time
that writing took a step, by its own clock and as the difference of medians.
Run: python benchmarks/journal_cost.py [--steps 300] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from datetime import date
from pathlib import Path

import torch

from stepladder.cli.closing import Closing
from stepladder.cli.instruments import Instruments
from stepladder.cli.watches import Watches
from stepladder.model import build
from stepladder.record import Journal, Report
from stepladder.train import climb

STEP_SECONDS = 0.020
LIMIT = 0.01


def report_of(step: int) -> Report:
    return Report(
        step=step, loss=2.0 + step / 1e6, grad_norm=0.5, lr=3e-4, tokens=65536,
        seconds=STEP_SECONDS, memory_bytes=3 * 2**30 + step, tokens_per_second=3.2e6,
        flops_per_second=4e14, mfu=0.41, hfu=0.41, length=1024,
    )  # fmt: skip


def work(until: float) -> None:
    """Keep the processor as busy as a step would."""
    matrix = torch.ones(128, 128)
    while time.perf_counter() < until:
        matrix @ matrix


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    run = climb(build("gpt-tiny", sequence=16), loss="cross_entropy", plan="fp32", device="cpu")
    tokens = torch.randint(0, 256, (1, 16))
    run.step((tokens, tokens))
    closing = Closing(run, None)
    plain, written, spent = [], [], []
    with tempfile.TemporaryDirectory() as folder, Journal(folder) as journal:
        watches = Watches(run.world.device)
        with Instruments(run, closing) as instruments:
            for step in range(options.steps):
                for writes, times in ((False, plain), (True, written)):
                    began = time.perf_counter()
                    work(began + STEP_SECONDS)
                    if writes:
                        start, report = time.perf_counter(), report_of(step)
                        journal.write("step", **report.to_dict())
                        list(watches.look(report))
                        instruments.read(report, journal)
                        spent.append(time.perf_counter() - start)
                    times.append(time.perf_counter() - began)
        size = (Path(folder) / "journal.jsonl").stat().st_size / options.steps
    cost = statistics.median(spent)
    found = {
        "date": date.today().isoformat(),
        "machine": f"{os.cpu_count()} CPU cores",
        "step_ms": STEP_SECONDS * 1e3,
        "written_us_a_step": cost * 1e6,
        "written_us_a_step_mean": statistics.fmean(spent) * 1e6,
        "share": cost / STEP_SECONDS,
        "difference_of_medians_us": (statistics.median(written) - statistics.median(plain)) * 1e6,
        "bytes_a_step": size,
        "within_limit": cost / STEP_SECONDS < LIMIT,
    }
    print(json.dumps(found, indent=2))
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")
    raise SystemExit(0 if found["within_limit"] else 1)


if __name__ == "__main__":
    main()
