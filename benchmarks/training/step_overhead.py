"""`run.step` against the plainest hand-written loop doing the same work, alternating in one run.

The same weights, batches, optimizer (fused AdamW) and clipping; the loop below is what people write
by hand. The two take turns step by step, so that a noisy machine disturbs both alike. Prints the
ratio of median step times of each repeat, all of them.
Run: python benchmarks/training/step_overhead.py [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
from torch.nn import functional

from stepladder.data import text_corpus
from stepladder.model import build
from stepladder.train import climb

SIZE, LENGTH = 8, 128
WARMUP, STEPS, REPEATS = 10, 150, 5


class Plain:
    """The loop everybody writes."""

    def __init__(self) -> None:
        self.model = build("gpt-tiny", sequence=LENGTH)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.0, fused=True
        )

    def step(self, inputs: torch.Tensor, targets: torch.Tensor) -> float:
        logits = self.model(inputs)
        loss = functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()


def ours():
    run = climb(
        build("gpt-tiny", sequence=LENGTH),
        loss="cross_entropy",
        optimizer="adamw lr=1e-3 clip=1",
        plan="fp32",
        device="cpu",
    )
    return lambda inputs, targets: run.step((inputs, targets)).loss


def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    source = text_corpus(length=LENGTH)
    rows = [[source[SIZE * batch + row] for row in range(SIZE)] for batch in range(8)]
    return [(torch.stack([x for x, _ in r]), torch.stack([y for _, y in r])) for r in rows]


def timed(step, batch) -> tuple[float, float]:
    began = time.perf_counter()
    loss = step(*batch)
    return time.perf_counter() - began, loss


def repeat(data) -> tuple[float, dict[str, float]]:
    """One repeat from fresh weights: the ratio of median step times, step by step in turn."""
    loops = {"plain loop": Plain().step, "run.step": ours()}
    seconds: dict[str, list[float]] = {name: [] for name in loops}
    losses = {}
    for index in range(WARMUP + STEPS):
        order = list(loops) if index % 2 else list(loops)[::-1]
        for name in order:
            spent, losses[name] = timed(loops[name], data[index % len(data)])
            if index >= WARMUP:
                seconds[name].append(spent)
    plain, ours_ = (statistics.median(seconds[name]) for name in loops)
    return ours_ / plain, losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", default="benchmarks/results/step_overhead.json")
    options = parser.parse_args()
    data = batches()
    repeats = [repeat(data) for _ in range(REPEATS)]
    ratios = [ratio for ratio, _ in repeats]
    result = {
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"CPU, {torch.get_num_threads()} threads, torch {torch.__version__}",
        "steps_a_repeat": STEPS,
        "ratios": ratios,
        "median_ratio": statistics.median(ratios),
        "last_losses": repeats[-1][1],
    }
    print(json.dumps(result, indent=2))
    Path(options.json).parent.mkdir(parents=True, exist_ok=True)
    Path(options.json).write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
