"""`exact=ranks`: one hash for every layout and number of ranks, and its price against plain plans.

Run: python benchmarks/exact_ranks.py            writes results/exact_ranks.json and .md
     python benchmarks/exact_ranks.py --json     prints the result too

Every layout trains a small transformer and a small convolutional net from the same random weights,
with dropout, on gloo ranks of this machine's processor; the hash is of every bit of every parameter
and buffer, of the losses and of the gradient norms. The oracle is a plain torch loop over whole
batches without dropout, which shares no code with the engine. Prices are ratios of medians of steps
that are taken in turn, in the same processes: against the same plan without `exact=ranks`, and
against that cut into as many micro-batches, which leaves what the fixed order costs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import time
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional

from stepladder.launch import Ranks
from stepladder.train import Run, climb

RESULTS = Path(__file__).parent / "results"
STEPS, ROWS, LENGTH, VOCAB = 3, 16, 12, 61
RANKS = (1, 2, 4, 8)
LAYOUTS = ("ddp", "zero1", "zero2", "zero3")
OPTIMIZERS = ("sgd lr=0.05 momentum=0.9", "adamw lr=1e-2 clip=0.5")
PRICED, WARM_UP, TIMED = (2, 4), 3, 15
SLICES = 8


class Transformer(nn.Module):
    def __init__(self, width: int = 24, blocks: int = 2, dropout: float = 0.1) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 3, 40, dropout, batch_first=True, norm_first=True)
            for _ in range(blocks)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCAB)
        self.temperature = nn.Parameter(torch.tensor(1.1))  # FSDP2 cannot shard it

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)) * self.temperature


class Convolutions(nn.Module):
    def __init__(self, dropout: float = 0.2) -> None:
        super().__init__()
        self.cut, self.norm = nn.Conv2d(3, 7, 3), nn.BatchNorm2d(7)
        self.drop, self.head = nn.Dropout(dropout), nn.Linear(7 * 16, 10)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.drop(torch.relu(self.norm(self.cut(images)))).flatten(1))


MODELS = {"transformer": Transformer, "convolutions": Convolutions}


def batches(model: str, steps: int = STEPS) -> list[tuple[Tensor, Tensor]]:
    draw = torch.Generator().manual_seed(5)
    made = []
    for _ in range(steps):
        if model == "convolutions":
            images = torch.randn(ROWS, 3, 6, 6, generator=draw)
            made.append((images, torch.randint(0, 10, (ROWS,), generator=draw)))
            continue
        tokens = torch.randint(0, VOCAB, (ROWS, LENGTH + 1), generator=draw)
        targets = tokens[:, 1:].clone()
        targets[torch.rand(targets.shape, generator=draw) < 0.3] = -100  # slices weigh unequally
        made.append((tokens[:, :-1], targets))
    return made


def build(model: str, seed: int = 0, **how: Any) -> nn.Module:
    torch.manual_seed(seed)
    return MODELS[model](**how)


def digest(run: Run, reports: list[Any]) -> str:
    found = hashlib.sha256(json.dumps([(r.loss, r.grad_norm, r.tokens) for r in reports]).encode())
    for name, tensor in (*run.module.named_parameters(), *run.module.named_buffers()):
        whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        found.update(name.encode() + whole.detach().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:16]


def train(model: str, plan: str, optimizer: str) -> str:
    run = climb(build(model), loss="cross_entropy", plan=plan, optimizer=optimizer, device="cpu")
    reports = [run.step(batch, rows="global").read() for batch in batches(model)]
    return digest(run, reports)


def train_all(cases: list[tuple[str, str, str]]) -> list[str]:
    return [train(*case) for case in cases]


def compare() -> list[dict[str, Any]]:
    """One row for each model, precision and optimizer: the hashes of every layout."""
    kinds = [(m, p, o) for m in MODELS for p in ("fp32", "bf16") for o in OPTIMIZERS]
    hashes: dict[str, list[str]] = {}
    for ranks in RANKS:
        with Ranks(ranks, threads=1) as pool:
            # One rank is one device with accumulation: eight slices, one after the other.
            for layout in LAYOUTS if ranks > 1 else ("",):
                cases = [(m, f"{p} {layout} exact=ranks", o) for m, p, o in kinds]
                every = pool.call(train_all, cases, ranks=ranks)
                assert all(one == every[0] for one in every), "ranks of one run differ"
                hashes[f"{ranks} {layout or 'accumulation'}"] = every[0]
    return [
        {
            "model": model, "precision": precision, "optimizer": optimizer,
            "hash": hashes["1 accumulation"][index],
            "same": len({found[index] for found in hashes.values()}) == 1,
            "runs": {name: found[index] for name, found in hashes.items()},
        }
        for index, (model, precision, optimizer) in enumerate(kinds)
    ]  # fmt: skip


def against_plain_loop() -> float:
    """The largest difference of any parameter from a plain torch loop over whole batches."""
    run = climb(
        build("transformer", dropout=0.0), loss="cross_entropy", plan="fp32 exact=ranks",
        optimizer=OPTIMIZERS[0], device="cpu",
    )  # fmt: skip
    plain = build("transformer", dropout=0.0).train()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.05, momentum=0.9)
    for tokens, targets in batches("transformer"):
        run.step((tokens, targets))
        optimizer.zero_grad()
        functional.cross_entropy(plain(tokens).flatten(0, 1), targets.flatten()).backward()
        optimizer.step()
    pairs = zip(run.module.parameters(), plain.parameters())
    return max((mine - theirs).abs().max().item() for mine, theirs in pairs)


def time_each(layout: str) -> list[float]:
    """Median seconds of a step plain, plain in as many micro-batches, and exact, taken in turn."""
    each = SLICES // int(os.environ["WORLD_SIZE"])
    runs = []
    for words in ("", f"accumulate={each}", f"exact=ranks:{SLICES}"):
        module = build("transformer", width=192, blocks=4)
        plan, optimizer = f"fp32 {layout} {words}", OPTIMIZERS[1]
        runs.append(
            climb(module, loss="cross_entropy", plan=plan, optimizer=optimizer, device="cpu")
        )
    seconds: list[list[float]] = [[] for _ in runs]
    for batch in batches("transformer", WARM_UP + TIMED):
        for run, taken in zip(runs, seconds):
            start = time.perf_counter()
            run.step(batch, rows="global").read()
            taken.append(time.perf_counter() - start)
    return [median(taken[WARM_UP:]) for taken in seconds]


def price() -> list[dict[str, Any]]:
    found = []
    for ranks in PRICED:
        with Ranks(ranks, threads=1) as pool:
            for layout in LAYOUTS:
                plain, cut, exact = pool.call(time_each, layout, ranks=ranks)[0]
                found.append({
                    "ranks": ranks, "layout": layout,
                    "against_plain": exact / plain, "against_cut": exact / cut,
                })  # fmt: skip
    return found


def measure() -> dict[str, Any]:
    return {
        "date": date.today().isoformat(),
        "machine": f"CPU, {os.cpu_count()} cores, {platform.machine()}, gloo, "
        f"torch {torch.__version__}",
        "load": os.getloadavg()[0],
        "slices": SLICES,
        "steps": STEPS,
        "same_bits": compare(),
        "from_plain_loop": against_plain_loop(),
        "price": price(),
    }


def table(found: dict[str, Any]) -> str:
    rows = found["same_bits"]
    same = sum(row["same"] for row in rows)
    lines = [
        "# The same bits on any number of ranks",
        "",
        "    python benchmarks/exact_ranks.py",
        "",
        f"date {found['date']}, machine {found['machine']}, load {found['load']:.1f}, "
        f"{found['slices']} slices, "
        f"{found['steps']} steps.",
        "",
        f"{same} of {len(rows)} have one hash over {len(rows[0]['runs'])} runs: "
        f"{', '.join(rows[0]['runs'])}. Largest difference of a parameter from a plain torch loop "
        f"over whole batches: {found['from_plain_loop']:.1e}.",
        "",
        "| model | precision | optimizer, with dropout | hash | in all runs |",
        "|---|---|---|---|---|",
        *(
            f"| {row['model']} | {row['precision']} | {row['optimizer']} | {row['hash']} | "
            f"{'same' if row['same'] else 'DIFFERENT'} |"
            for row in rows
        ),
        "",
        "Time of a step with `exact=ranks`, over that of the same plan without it, and of that in "
        "as many micro-batches:",
        "",
        "| ranks | plan | without | in as many micro-batches |",
        "|---|---|---:|---:|",
        *(
            f"| {row['ranks']} | {row['layout']} | {row['against_plain']:.2f} | "
            f"{row['against_cut']:.2f} |"
            for row in found["price"]
        ),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print the result")
    options = parser.parse_args()
    found = measure()
    (RESULTS / "exact_ranks.json").write_text(json.dumps(found, indent=1) + "\n")
    (RESULTS / "exact_ranks.md").write_text(table(found))
    print(json.dumps(found) if options.json else table(found))
    raise SystemExit(0 if all(row["same"] for row in found["same_bits"]) else 1)


if __name__ == "__main__":
    main()
