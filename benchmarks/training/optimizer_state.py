"""Loss with masters and moments in 14, 10 and 7 bytes a parameter against AdamW in float32.

Trains a small GPT on Python's own source, every sample once, from the same first weights for each
plan and seed; on a GPU a larger one, all runs at once, each in a process of its own. Prints a table
and writes benchmarks/results/optimizer_state.json; --plot draws it.
Run: PYTHONPATH=src python3 benchmarks/training/optimizer_state.py [--device cuda] [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from stepladder.bench import make_workload
from stepladder.bench.loss_curves.final_loss import with_seed
from stepladder.bench.loss_curves.learning_rates import RateCase, train
from stepladder.cli.results.plots import figure, place_legend, store
from stepladder.palette import COLOURS, REFERENCE
from stepladder.plan import Plan

PLANS = ("fp32", "bf16-master state=14", "bf16-master state=10", "bf16-master state=7")
WARMUP, SEEDS = 50, 3
EVERY = 10  # steps from one loss that is written to the next


@dataclass(frozen=True, slots=True)
class Trial:
    """What is trained, and how many at once."""

    model: str
    sequence: int
    batch: int
    optimizer: str
    words: str  # added to each plan
    processes: int


TRIALS = {
    "cpu": Trial(
        "gpt:layers=4,hidden=128,heads=4,vocab=256,sequence=128",
        128, 16, "adamw lr=3e-3 wd=0.1 clip=1", "", 1,
    ),
    "cuda": Trial(
        "gpt:layers=6,hidden=384,heads=6,vocab=256,sequence=256",
        256, 28, "adamw lr=1e-3 wd=0.1 clip=1", "graphs=on", SEEDS * len(PLANS),
    ),
}  # fmt: skip


def measure(steps: int, seeds: int, device: str) -> Iterator[list[dict[str, Any]]]:
    """The rows so far, after each seed; plans and seeds in processes of their own."""
    rows: list[dict[str, Any]] = [
        {"plan": text, "finals": [], "apart": [], "curves": [], "seconds": []} for text in PLANS
    ]
    with ProcessPoolExecutor(TRIALS[device].processes, mp_context=get_context("spawn")) as pool:
        begun = [
            [pool.submit(learn, text, seed, steps, device) for text in PLANS]
            for seed in range(seeds)
        ]
        for seed, each in enumerate(begun):
            for row, made in zip(rows, each):
                final, curve, seconds = made.result()
                row["finals"].append(final)
                row["apart"].append(final / rows[0]["finals"][seed] - 1)
                row["curves"].append(curve)
                row["seconds"].append(seconds)
                print(line(row), flush=True)
            yield rows


def learn(text: str, seed: int, steps: int, device: str) -> tuple[float, list[float], float]:
    """The mean loss of the last tenth, of every few steps, and the seconds that it took."""
    torch.set_num_threads(1)
    begun, trial = time.perf_counter(), TRIALS[device]
    work = make_workload(
        trial.model, batch=trial.batch, sequence=trial.sequence, num_batches=steps, device=device
    )
    case = RateCase(trial.optimizer, trial.batch, trial.batch, "base", WARMUP)
    plan = Plan.parse(f"{text} {trial.words}")
    curve = train(with_seed(work, seed), case, plan, seed)
    if curve.final is None:
        raise SystemExit(f"{text}: {curve.problem}")
    losses = curve.losses
    means = [statistics.mean(losses[at : at + EVERY]) for at in range(0, steps, EVERY)]
    return curve.final, means, round(time.perf_counter() - begun, 1)


def line(row: dict[str, Any]) -> str:
    apart = ", ".join(f"{share:+.2%}" for share in row["apart"])
    mean = statistics.mean(row["apart"])
    return f"| `{row['plan']}` | {statistics.mean(row['finals']):.4f} | {mean:+.2%} | {apart} |"


def draw(result: dict[str, Any], path: Path) -> None:
    """Each plan's loss relative to fp32's of the same seed, smoothed over a tenth of the steps."""
    drawn, axes = figure(8, 4)
    exact, *others = result["rows"]
    for row, colour in zip(others, COLOURS):
        for seed, (curve, other) in enumerate(zip(row["curves"], exact["curves"])):
            apart = [100 * (mean(curve, at) / mean(other, at) - 1) for at in range(len(curve))]
            steps = [EVERY * (at + 1) for at in range(len(curve))]
            label = row["plan"] if seed == 0 else None
            axes.plot(steps, apart, color=colour, linewidth=1.2, label=label)
    axes.axhline(0, color=REFERENCE, linewidth=0.8)
    axes.set(xlabel="step", ylabel="loss against fp32, %")
    place_legend(axes)
    store(drawn, path)


def mean(curve: list[float], at: int) -> float:
    return statistics.mean(curve[max(0, at - len(curve) // 10) : at + 1])


def machine(device: str) -> str:
    if device == "cuda":
        return torch.cuda.get_device_name()
    return f"{platform.processor() or platform.machine()}, one thread"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--device", choices=TRIALS, default="cpu")
    parser.add_argument("--out", default="benchmarks/results/optimizer_state.json")
    parser.add_argument("--plot", metavar="FILE.png", help="draw what --out holds, train nothing")
    options = parser.parse_args()
    if options.plot:
        draw(json.loads(Path(options.out).read_text()), Path(options.plot))
        return
    torch.set_num_threads(1)
    print("| plan | loss of the last tenth | from fp32, mean | by seed |")
    print("| --- | --- | --- | --- |")
    result = {
        "date": time.strftime("%Y-%m-%d"),
        "machine": machine(options.device),
        "torch": torch.__version__,
        "command": f"python benchmarks/training/optimizer_state.py --device {options.device}",
        **asdict(TRIALS[options.device]),
        "steps": options.steps,
    }
    out = Path(options.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    for rows in measure(options.steps, options.seeds, options.device):
        out.write_text(json.dumps({**result, "rows": rows}) + "\n")


if __name__ == "__main__":
    main()
