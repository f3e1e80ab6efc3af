"""Muon against AdamW: the loss after the same tokens, state by rank, and on a GPU a step's time.

On a CPU it trains a small GPT on Python's own source with three rates of each optimizer and three
seeds, and holds what four gloo ranks keep against the forecast. With --cuda it times steps of half
a million tokens of a GPT of 124 M and of a Llama of 1.2 B parameters, on random tokens: AdamW,
Muon, NorMuon, and AdamW again. Prints tables and writes benchmarks/results/muon.json or
muon_gpu.json. Run: PYTHONPATH=src python3 benchmarks/training/muon.py [--cuda] [--out FOLDER]
"""

from __future__ import annotations

import argparse
import gc
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
from stepladder.plan import Batch, Optimizer, Plan
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
TOKENS = 2**19  # of a step on the GPU
LARGE = {  # model, its sequence, rows of a micro-batch, timed steps
    "GPT 124M": ("gpt2", 1024, 32, 6),
    "Llama 1.2B": (
        "llama:layers=16,hidden=2048,heads=32,kv_heads=8,ffn=8192,vocab=128256,tied=1",
        *(2048, 8, 3),
    ),
}


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
                settled = replace(plan, batch=Batch(8, 2)).settle(4)
                said = max(stage.optimizer for stage in forecast_state(facts, settled))
                print(f"{layout:26} {name:8} {measured:9,} B, forecast {said:9,} B", flush=True)
                yield {"layout": layout, "optimizer": name, "measured": measured, "forecast": said}


def time_steps(model: str, sequence: int, micro: int, steps: int, words: str) -> dict[str, Any]:
    """Seconds of a step, of them the update's, and the peak."""
    torch.cuda.reset_peak_memory_stats()
    module = build(model, seed=0, sequence=sequence)
    plan = f"bf16 compile=on kernels=on micro={micro}"
    run = climb(module, loss="cross_entropy", optimizer=words, plan=plan, device="cuda")
    rows = TOKENS // sequence
    batch = torch.randint(0, 50_000, (rows, sequence + 1), device="cuda")
    inputs, targets = batch[:, :-1].contiguous(), batch[:, 1:].contiguous()
    seconds, updates = [], []
    step = run.optimizer.step

    def timed() -> None:
        torch.cuda.synchronize()
        begun = time.perf_counter()
        step()
        torch.cuda.synchronize()
        updates.append(time.perf_counter() - begun)

    for index in range(2 * steps + 2):
        if index == steps + 2:  # the first half is not stopped between gradients and update
            run.optimizer.step = timed
        torch.cuda.synchronize()
        begun = time.perf_counter()
        loss = run.step((inputs, targets)).read().loss
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begun)
    peak = torch.cuda.max_memory_allocated()
    whole = statistics.median(seconds[2 : steps + 2])
    return {
        "step": whole, "spread": max(seconds[2 : steps + 2]) / whole - 1,
        "update": statistics.median(updates[1:] or updates), "peak": peak, "loss": loss,
    }  # fmt: skip


def on_gpu() -> Iterator[dict[str, Any]]:
    for name, (model, sequence, micro, steps) in LARGE.items():
        found: list[tuple[str, dict[str, Any]]] = []
        for optimizer in ("adamw", "muon", "normuon", "adamw"):
            row = time_steps(model, sequence, micro, steps, WORDS[optimizer])
            gc.collect()
            torch.cuda.empty_cache()
            found.append((optimizer, row))
            print(
                f"{name:10} {optimizer:8} {row['step']:.4f} s (+{row['spread']:.1%}), update "
                f"{1e3 * row['update']:.2f} ms, peak {row['peak'] / 2**30:.2f} GiB", flush=True,
            )  # fmt: skip
        plain = statistics.mean(row["step"] for optimizer, row in found if optimizer == "adamw")
        ratios = {o: row["step"] / plain for o, row in found if o != "adamw"}
        print(f"{name}: " + ", ".join(f"{o} {r:.3f} x AdamW's step" for o, r in ratios.items()))
        yield {"model": name, "tokens": TOKENS, "rows": found, "ratios": ratios}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cuda", action="store_true")
    parser.add_argument("--out", default="benchmarks/results")
    options = parser.parse_args()
    if options.cuda and not torch.cuda.is_available():
        raise SystemExit("device: --cuda times a GPU and this machine has none.")
    machine = torch.cuda.get_device_name() if options.cuda else f"CPU, {platform.machine()}, gloo"
    result: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d"), "machine": machine, "torch": torch.__version__,
    }  # fmt: skip
    if options.cuda:
        result["tables"] = list(on_gpu())
    else:
        result["memory"] = list(memory())
        rows = list(losses())
        result |= {"tokens": STEPS * BATCH * SEQUENCE, "losses": rows, "best": best(rows)}
        for name, row in result["best"].items():
            print(f"best of {name}: {row['mean']:.4f} with {row['words']}")
    folder = Path(options.out)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / ("muon_gpu.json" if options.cuda else "muon.json")
    file.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
