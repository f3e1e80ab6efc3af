"""How fast `plan="auto"` trains on a processor, against the plain loop a user would write.

    OMP_NUM_THREADS=1 python benchmarks/zoo_cpu.py [--only NAME,NAME] [--turns N]

Both are float32 without compilation, AdamW and gradient clipping, with the same weights and
batches, and take turns. What is compared is the processor's time, which other work on the machine
does not add to; a row is the median of the turns' ratios. Rows go to results/zoo_cpu.json and .md,
where those of other modules stay.
"""

from __future__ import annotations

import argparse
import copy
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import stepladder as sl

sys.path.insert(0, str(Path(__file__).parent / "zoo"))

from real_sizes import Case, DiT, Encoder, HandGPT, LSTMModel, Mixer, UNet

RESULTS = Path(__file__).parent / "results" / "zoo_cpu.json"
TURN_SECONDS, LOSSES = 0.5, 10


def words(rows: int, length: int, vocabulary: int) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = torch.randint(0, vocabulary, (rows, length + 1))
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


CASES: dict[str, Callable[[], Case]] = {
    "hand_gpt": lambda: Case(HandGPT(128, 4, 2000), words(8, 64, 2000), "cross_entropy"),
    "lstm": lambda: Case(LSTMModel(2000, 128), words(16, 32, 2000), "cross_entropy"),
    "encoder": lambda: Case(
        Encoder(128, 3, 2000),
        (torch.randint(1, 2000, (16, 48)), torch.randint(0, 2, (16,))),
        "cross_entropy",
    ),
    "unet": lambda: Case(
        UNet(32), (torch.randn(4, 3, 32, 32), torch.randn(4, 3, 32, 32)), "squared_error"
    ),
    "mixer": lambda: Case(
        Mixer(96, 3, 100), (torch.randn(8, 3, 224, 224), torch.randint(0, 100, (8,))),
        "cross_entropy",
    ),
    "dit": lambda: Case(
        DiT(192, 2), ((torch.randn(4, 256, 16), torch.randn(4, 256)), torch.randn(4, 256, 16)),
        "squared_error",
    ),
}  # fmt: skip


class Plain:
    """The loop a user would write."""

    def __init__(self, case: Case) -> None:
        self.case, self.module = case, copy.deepcopy(case.module)
        self.optimizer = torch.optim.AdamW(
            self.module.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.01
        )

    def step(self) -> float:
        loss = self.case.plain_loss(self.module, self.case.batch)
        loss.backward()
        nn.utils.clip_grad_norm_(self.module.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return float(loss.detach())


class Ours:
    """stepladder, as the README has it."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.run = sl.climb(
            copy.deepcopy(case.module), loss=case.loss, plan="auto", sample=case.batch,
            optimizer="adamw lr=1e-4 clip=1 wd=0.01", device="cpu",
        )  # fmt: skip

    def step(self) -> float:
        return self.run.step(self.case.batch).loss


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=",".join(CASES))
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    path: Path = options.results
    rows = {row["module"]: row for row in json.loads(path.read_text())} if path.exists() else {}
    for name in options.only.split(","):
        rows[name] = measure(name, options.turns)
        path.write_text(json.dumps([*rows.values()], indent=1) + "\n")
    page = table([*rows.values()])
    options.results.with_suffix(".md").write_text(page)
    print(page)
    return 0


def measure(name: str, turns: int) -> dict[str, Any]:
    torch.manual_seed(0)
    case = CASES[name]()
    plain, ours = Plain(case), Ours(case)
    pairs = [(plain.step(), ours.step()) for _ in range(LOSSES)]
    off = max(abs(one - other) / abs(one) for one, other in pairs)
    times = [(take_turn(plain), take_turn(ours)) for _ in range(turns)]
    row = {
        "module": name,
        "plain_ms": round(1e3 * statistics.median(one for one, _ in times), 2),
        "auto_ms": round(1e3 * statistics.median(other for _, other in times), 2),
        "ratio": round(statistics.median(one / other for one, other in times), 4),
        "losses_differ": off,
        "plan": str(ours.run.plan).partition(" 'optimizer")[0],
        "threads": torch.get_num_threads(),
        "machine": f"{platform.machine()}, torch {torch.__version__}",
        "date": time.strftime("%Y-%m-%d"),
    }
    print(json.dumps(row), flush=True)
    return row


def take_turn(loop: Plain | Ours) -> float:
    """Seconds of the processor for one step."""
    began, steps = time.process_time(), 0
    while steps < 2 or time.process_time() - began < TURN_SECONDS:
        loop.step()
        steps += 1
    return (time.process_time() - began) / steps


HEAD = """# `auto` on a processor

`python benchmarks/zoo_cpu.py`, {date}, {machine}, {threads} thread. Seconds of the processor a
step, in alternating turns; above 1 is faster than the plain loop. Geometric mean {mean:.3f}, worst
{worst:.3f}.

| module | plain, ms | `auto`, ms | × | losses differ by | plan |
|---|---|---|---|---|---|
"""


def table(rows: list[dict[str, Any]]) -> str:
    ratios = [row["ratio"] for row in rows]
    mean, worst = statistics.geometric_mean(ratios), min(ratios)
    return HEAD.format(**rows[0], mean=mean, worst=worst) + "".join(
        f"| {row['module']} | {row['plain_ms']:.1f} | {row['auto_ms']:.1f} | {row['ratio']:.3f} | "
        f"{row['losses_differ']:.0e} | `{row['plan']}` |\n"
        for row in rows
    )


if __name__ == "__main__":
    raise SystemExit(main())
