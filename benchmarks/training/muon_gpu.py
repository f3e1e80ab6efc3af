"""Muon against AdamW on a GPU: seconds of a step of half a million tokens, and 1,000 steps of text.

A step of a Llama of 1.2 B and of a GPT of 124 M parameters in bf16, compiled, on random tokens;
then the loss of a byte-level GPT that reads 7 MB of Python's own source once. There each optimizer
tries three rates with three seeds: first weights differ, samples do not. Text comes first; what is
done is written after each row, and nothing begins that would end after --seconds. Losses of text do
not depend on how busy the GPU is, the seconds of a step do: --only measures one part in a run of
its own. Prints tables and writes --out, where the parts that are not measured stay as they are.
Run: PYTHONPATH=src python3 benchmarks/training/muon_gpu.py [--only text|gpt|llama] [--out FILE]
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from stepladder.bench import make_workload
from stepladder.bench.loss_curves.final_loss import with_seed
from stepladder.bench.loss_curves.learning_rates import RateCase, train
from stepladder.model import build
from stepladder.plan import Plan
from stepladder.train import climb

TOKENS = 2**19  # of a step
LEAST = 25  # seconds, in which a size is worth beginning
WORDS = {
    "adamw": "adamw lr=3e-4 wd=0.1 clip=1",
    "muon": "muon lr=0.02 adamw_lr=3e-4 wd=0.1 clip=1",
}
LLAMA = "llama:layers=16,hidden=2048,heads=32,kv_heads=8,ffn=8192,vocab=128256,tied=1"
TEXT = "gpt:layers=6,hidden=256,heads=8,vocab=256,sequence=256"
BATCH, SEQUENCE, WARMUP, SEEDS = 28, 256, 50, 3
PROCESSES = 9  # that learn from text at once
TINY = "gpt:layers=2,hidden=32,heads=2,vocab=256,sequence=32"  # to try the script on a CPU
RATES = {  # as many tries each
    "adamw": [f"adamw lr={lr} wd=0.1 clip=1" for lr in ("1e-3", "2e-3", "4e-3")],
    "muon": [f"muon lr={lr} adamw_lr=2e-3 wd=0.1 clip=1" for lr in ("0.01", "0.02", "0.04")],
}


@dataclass(frozen=True, slots=True)
class Size:
    """A model whose steps are timed."""

    name: str
    model: str
    sequence: int
    micro: int  # rows
    steps: int


SIZES = {
    "gpt": Size("GPT 124M", "gpt2", 1024, 32, 4),
    "llama": Size("Llama 1.2B", LLAMA, 2048, 8, 1),
}


class Clock:
    """What is left of the time that was given."""

    def __init__(self, seconds: float) -> None:
        self.end = time.monotonic() + seconds

    def allows(self, expected: float) -> bool:
        return time.monotonic() + expected < self.end


def time_steps(size: Size, words: str, device: str, tokens: int) -> dict[str, Any]:
    """Seconds of a whole step, and of the update by itself, after short steps that compile."""
    begun = time.perf_counter()
    cuda = device == "cuda"
    wait: Callable[[], None] = torch.cuda.synchronize if cuda else lambda: None
    module = build(size.model, seed=0, sequence=size.sequence)
    ways = "bf16 compile=on kernels=on" if cuda else "fp32"
    run = climb(
        module, loss="cross_entropy", optimizer=words, plan=f"{ways} micro={size.micro}",
        device=device,
    )  # fmt: skip
    rows = tokens // size.sequence
    draw = torch.Generator(device).manual_seed(0)
    batch = torch.randint(0, 255, (rows, size.sequence + 1), device=device, generator=draw)
    inputs, targets = batch[:, :-1].contiguous(), batch[:, 1:].contiguous()
    short = 2 * size.micro
    for _ in range(2):
        run.step((inputs[:short], targets[:short])).read()
    wait()
    ready = time.perf_counter() - begun
    print(f"{size.name} {words.split()[0]}: ready after {ready:.0f} s", flush=True)
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    seconds = []
    for _ in range(size.steps):
        wait()
        begun = time.perf_counter()
        loss = run.step((inputs, targets)).read().loss
        wait()
        seconds.append(time.perf_counter() - begun)
    updates: list[float] = []
    update = run.optimizer.step

    def timed() -> None:
        wait()
        begun = time.perf_counter()
        update()
        wait()
        updates.append(time.perf_counter() - begun)

    run.optimizer.step = timed
    for _ in range(6):
        run.step((inputs[:short], targets[:short])).read()
    peak = torch.cuda.max_memory_allocated() if cuda else 0
    return {
        "step": statistics.median(seconds), "steps": seconds,
        "update": statistics.median(updates[1:]), "updates": updates[1:],
        "peak": peak, "loss": loss, "ready": ready,
    }  # fmt: skip


def step_times(device: str, tokens: int, sizes: list[Size], clock: Clock) -> Iterator[Any]:
    for size in sizes:
        if not clock.allows(LEAST):
            print(f"{size.name}: no time left", flush=True)
            return
        found: dict[str, Any] = {}
        for name, words in WORDS.items():
            begun = time.monotonic()
            if found and not clock.allows(found["adamw"]["whole"]):
                print(f"{size.name}: no time left for {name}", flush=True)
                break
            row = time_steps(size, words, device, tokens)
            row["whole"] = time.monotonic() - begun
            gc.collect()
            torch.cuda.empty_cache()
            found[name] = row
            print(
                f"{size.name:10} {name:8} {row['step']:.4f} s, update {1e3 * row['update']:.2f} ms,"
                f" peak {row['peak'] / 2**30:.2f} GiB ({row['ready']:.0f} s to be ready)",
                flush=True,
            )
        table = {"model": size.name, "tokens": tokens, "rows": found}
        if len(found) == len(WORDS):
            table["ratio"] = found["muon"]["step"] / found["adamw"]["step"]
            # An update is a small part of a step, and steps differ by more: what it adds by itself.
            more = found["muon"]["update"] - found["adamw"]["update"]
            table["by_update"] = 1 + more / found["adamw"]["step"]
            print(f"{size.name}: Muon {table['ratio']:.3f} x AdamW's step", flush=True)
        yield table


def losses(device: str, steps: int, model: str, sequence: int) -> Iterator[Any]:
    """Every rate with every seed, each in a process of its own: one alone leaves a GPU idle."""
    jobs = [
        (name, words, seed)
        for seed in range(SEEDS)
        for tried in zip(*RATES.values())
        for name, words in zip(RATES, tried)
    ]
    rows: dict[str, dict[str, Any]] = {}
    with ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as pool:
        started = {
            pool.submit(learn, words, seed, device, steps, model, sequence): (name, words, seed)
            for name, words, seed in jobs
        }
        for done in as_completed(started):
            name, words, seed = started[done]
            final, curve = done.result()
            print(f"{words:45} seed {seed}: {final}", flush=True)
            row = rows.setdefault(
                words, {"optimizer": name, "words": words, "finals": {}, "curves": {}}
            )
            row["finals"][seed], row["curves"][seed] = final, curve
            yield list(rows.values())


def learn(
    words: str, seed: int, device: str, steps: int, model: str, sequence: int
) -> tuple[float | None, list[float]]:
    """The mean loss of the last tenth, and of each tenth."""
    torch.set_num_threads(1)
    work = make_workload(model, batch=BATCH, sequence=sequence, num_batches=steps, device=device)
    plan = Plan.parse("tf32 graphs=on" if device == "cuda" else "fp32")
    curve = train(with_seed(work, seed), RateCase(words, BATCH, BATCH, "base", WARMUP), plan, seed)
    return curve.final, [round(statistics.fmean(part), 5) for part in tenths(curve.losses)]


def tenths(numbers: tuple[float, ...]) -> Iterator[tuple[float, ...]]:
    size = max(1, len(numbers) // 10)
    for at in range(0, len(numbers), size):
        yield numbers[at : at + size]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=150)
    parser.add_argument("--steps", type=int, default=1000, help="of text")
    parser.add_argument("--out", default="benchmarks/results/muon_gpu.json")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small models: to try the script")
    parser.add_argument("--only", choices=("text", *SIZES))
    options = parser.parse_args()
    clock, device = Clock(options.seconds), options.device
    if device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("device: --device cuda times a GPU and this machine has none.")
    text, sequence = (TINY, 32) if options.tiny else (TEXT, SEQUENCE)
    sizes = [size for name, size in SIZES.items() if options.only in (None, name)]
    if options.tiny and sizes:
        sizes = [Size("tiny", TINY, 32, 4, 2)]
    tokens = 1024 if options.tiny else TOKENS
    out = Path(options.out)
    result: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {}
    result = {"tables": [], "losses": []} | result | {
        "date": time.strftime("%Y-%m-%d"), "torch": torch.__version__,
        "machine": torch.cuda.get_device_name() if device == "cuda" else "CPU",
        "text": {"model": text, "batch": BATCH, "sequence": sequence, "steps": options.steps},
    }  # fmt: skip
    out.parent.mkdir(parents=True, exist_ok=True)

    def write() -> None:
        out.write_text(json.dumps(result, indent=1) + "\n")

    if options.only in (None, "text"):
        for rows in losses(device, options.steps, text, sequence):
            result["losses"] = rows
            write()
    for table in step_times(device, tokens, sizes, clock):
        others = [other for other in result["tables"] if other["model"] != table["model"]]
        result["tables"] = [*others, table]
        write()


if __name__ == "__main__":
    main()
