"""`recheck=100`: what it costs to take one step in a hundred twice and to compare the tries.

Run: python benchmarks/recheck.py            writes results/recheck.json and .md
     python benchmarks/recheck.py --json     prints the result as JSON

Two runs of a built-in GPT take their steps in turn, in the same processes: one of the plan, and one
of the plan with `recheck=1`, whose every step is taken twice. The price of `recheck=100` is what
the median rechecked step takes more, over a hundred median steps. On a GPU, which nobody shares,
whole hundreds of steps with `recheck=100` and without are timed in turn as well. Losses must agree.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

import torch

from stepladder.launch import Ranks
from stepladder.model import build
from stepladder.train import Run, climb

RESULTS = Path(__file__).parent / "results"
GPU = torch.cuda.is_available()
SHAPE = (
    "gpt:layers=12,hidden=768,heads=12,vocab=50304,sequence=1024"
    if GPU
    else "gpt:layers=4,hidden=256,heads=4,vocab=512,sequence=128"
)
ROWS, VOCAB, LENGTH = (16, 50304, 1024) if GPU else (16, 512, 128)
PLANS = (  # ranks, and the plan
    ((1, "bf16 exact=runs"), (1, "bf16 compile=on exact=runs"), (1, "bf16-master exact=runs"))
    if GPU
    else ((1, "fp32 exact=runs"), (2, "fp32 ddp exact=runs"), (2, "fp32 zero3 exact=runs"))
)
EVERY, WARM_UP, TIMED, HUNDREDS = 100, 3, 15, 4
OPTIMIZER = "adamw lr=3e-4 clip=1.0"


def make(plan: str) -> Run:
    device = "cuda" if GPU else "cpu"
    return climb(build(SHAPE), loss="cross_entropy", plan=plan, optimizer=OPTIMIZER, device=device)


def batches(steps: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    draw = torch.Generator().manual_seed(5)
    for _ in range(steps):
        tokens = torch.randint(0, VOCAB, (ROWS, LENGTH + 1), generator=draw)
        yield tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def take(run: Run, batch: Any) -> tuple[float, float]:
    """Seconds of a step, and its loss."""
    start = time.perf_counter()
    loss = run.step(batch, rows="global").read().loss  # waits for the device
    return time.perf_counter() - start, loss


def time_steps(plan: str) -> dict[str, float]:
    """Median seconds of a step that is taken once and of one that is taken twice, in turn."""
    runs = [make(plan), make(f"{plan} recheck=1")]
    seconds: list[list[float]] = [[], []]
    for batch in batches(WARM_UP + TIMED):
        (once, loss), (twice, same) = (take(run, batch) for run in runs)
        assert loss == same, "a rechecked run went another way"
        seconds[0].append(once)
        seconds[1].append(twice)
    assert not [event for event in runs[1].events if "differed" in event]
    once, twice = (median(each[WARM_UP:]) for each in seconds)
    return {"once": once, "twice": twice}


def time_hundreds(plan: str) -> float:
    """Seconds of whole hundreds of steps with `recheck=100`, over those without, in turn."""
    runs, total = [make(plan), make(f"{plan} recheck={EVERY}")], [0.0, 0.0]
    given = list(batches(8))
    for run in runs:
        for step in range(EVERY):  # a rechecked one among them
            run.step(given[step % 8]).read()
    for _ in range(HUNDREDS):
        for index, run in enumerate(runs):
            start = time.perf_counter()
            for step in range(EVERY):
                report = run.step(given[step % 8])
            report.read()
            total[index] += time.perf_counter() - start
    return total[1] / total[0]


def measure() -> dict[str, Any]:
    rows = []
    for ranks, plan in PLANS:
        with Ranks(ranks, threads=1) as pool:
            found = time_steps(plan) if ranks == 1 else pool.call(time_steps, plan, ranks=ranks)[0]
        more = found["twice"] / found["once"] - 1
        row = {"plan": plan, "ranks": ranks, "more_steps": more, "price": 1 + more / EVERY}
        rows.append(row | ({"hundreds": time_hundreds(plan)} if GPU else {}))
    name = torch.cuda.get_device_name() if GPU else f"CPU, {os.cpu_count()} cores, gloo"
    return {
        "date": date.today().isoformat(),
        "machine": f"{name}, {platform.machine()}, torch {torch.__version__}",
        "load": os.getloadavg()[0],
        "model": SHAPE,
        "rows_a_batch": ROWS,
        "rows": rows,
    }


def table(found: dict[str, Any]) -> str:
    lines = [
        "# The price of steps that are taken twice",
        "",
        "    python benchmarks/recheck.py",
        "",
        f"date {found['date']}, machine {found['machine']}, load {found['load']:.1f}, "
        f"`{found['model']}`, {found['rows_a_batch']} rows a batch.",
        "",
        "| ranks | plan | a rechecked step adds, in steps | price of `recheck=100` | hundreds |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in found["rows"]:
        whole = f"{row['hundreds']:.4f} ×" if "hundreds" in row else "–"
        lines.append(
            f"| {row['ranks']} | `{row['plan']}` | {row['more_steps']:.2f} | {row['price']:.4f} × "
            f"| {whole} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print the result")
    options = parser.parse_args()
    found = measure()
    (RESULTS / "recheck.json").write_text(json.dumps(found, indent=1) + "\n")
    (RESULTS / "recheck.md").write_text(table(found))
    print(json.dumps(found) if options.json else table(found))


if __name__ == "__main__":
    main()
