"""Muon against AdamW on a CPU: the loss after the same tokens, and state by rank.

Trains a small GPT on Python's own source with three rates of each optimizer and three seeds, and
compares what four gloo ranks keep with the forecast. Prints tables and writes --out; times on a GPU
are those of muon_gpu.py. Run: PYTHONPATH=src python3 benchmarks/training/muon.py [--out FILE.json]
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from stepladder.bench import make_workload
from stepladder.bench.loss_curves.learning_rates import RateCase, measure_learning_rates
from stepladder.launch import Ranks
from stepladder.model import build
from stepladder.plan import BatchSplit, Optimizer, Plan
from stepladder.planner import forecast_state
from stepladder.train import climb
from stepladder.workload import find_facts

SMALL = "gpt:layers=4,hidden=128,heads=4,vocab=256,sequence=128"  # whose state is counted
SMALLER = "gpt:layers=3,hidden=64,heads=4,vocab=256,sequence=64"  # which is trained
STEPS, BATCH, SEQUENCE, SEEDS = 240, 16, 64, 3
RATES = {  # each optimizer has as many tries
    "adamw": [f"adamw lr={lr} wd=0.1 clip=1" for lr in ("1e-3", "3e-3", "1e-2")],
    "muon": [f"muon lr={lr} adamw_lr=3e-3 wd=0.1 clip=1" for lr in ("0.01", "0.02", "0.04")],
    "normuon": [
        f"muon variant=normuon lr={lr} adamw_lr=3e-3 wd=0.1 clip=1"
        for lr in ("0.01", "0.02", "0.04")
    ],
}
WORDS = {
    "adamw": "adamw lr=3e-4 wd=0.1 clip=1",
    "muon": "muon lr=0.02 adamw_lr=3e-4 wd=0.1 clip=1",
    "normuon": "muon variant=normuon lr=0.02 adamw_lr=3e-4 wd=0.1 clip=1",
}
LAYOUTS = ("ddp", "zero1", "zero2", "zero3", "zero1 shard=2 tensor=2", "zero3 shard=2 pipeline=2")


def losses() -> Iterator[dict[str, Any]]:
    """The mean loss of the last tenth of the samples, none of which was seen before."""
    work = make_workload(SMALLER, batch=BATCH, sequence=SEQUENCE, num_batches=STEPS, device="cpu")
    for name, tries in RATES.items():
        for words in tries:
            case = RateCase(words, BATCH, BATCH, "base")
            curves = list(measure_learning_rates(work, [case], seeds=SEEDS))
            finals = [curve.final for curve in curves]
            if None in finals:
                print(f"{words}: {curves[finals.index(None)].problem}", flush=True)
                continue
            mean = statistics.mean(finals)
            print(
                f"{words:55} {mean:.4f} (seeds {min(finals):.4f} to {max(finals):.4f})", flush=True
            )
            yield {"optimizer": name, "words": words, "final": finals, "mean": mean}


def best(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    names = {row["optimizer"] for row in rows}
    return {
        name: min((r for r in rows if r["optimizer"] == name), key=lambda r: r["mean"])
        for name in sorted(names)
    }


def state_bytes(plan: str, words: str) -> int:
    """What this rank's optimizer keeps after a step; its counts of steps are left out."""
    plan, model = f"fp32 {plan} micro=2", build(SMALL, seed=0)
    run = climb(model, loss="cross_entropy", optimizer=words, plan=plan, device="cpu")
    tokens = torch.randint(0, 256, (8, 129), generator=torch.Generator().manual_seed(0))
    run.step((tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()), rows="global").read()
    kept = (tensor for state in run.optimizer.state.values() for tensor in state.values())
    return sum(tensor.nbytes for tensor in kept if tensor.dim())


def memory() -> Iterator[dict[str, Any]]:
    """The fullest of four ranks against its forecast."""
    facts = find_facts(SMALL)
    with Ranks(4, threads=1) as ranks:
        for layout in LAYOUTS:
            for name, words in WORDS.items():
                method = None
                measured = max(ranks.call(state_bytes, layout, words, ranks=4, init_method=method))
                plan = replace(Plan.parse(f"fp32 {layout}"), optimizer=Optimizer.parse(words))
                settled = replace(plan, batch=BatchSplit(8, 2)).settle(4)
                said = max(stage.optimizer for stage in forecast_state(facts, settled))
                print(f"{layout:26} {name:8} {measured:9,} B, forecast {said:9,} B", flush=True)
                yield {"layout": layout, "optimizer": name, "measured": measured, "forecast": said}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default="benchmarks/results/muon.json")
    options = parser.parse_args()
    rows = list(memory())
    tried = list(losses())
    result: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d"), "machine": f"CPU, {platform.machine()}, gloo",
        "torch": torch.__version__, "memory": rows, "tokens": STEPS * BATCH * SEQUENCE,
        "losses": tried, "best": best(tried),
    }  # fmt: skip
    for name, row in result["best"].items():
        print(f"best of {name}: {row['mean']:.4f} with {row['words']}")
    out = Path(options.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
