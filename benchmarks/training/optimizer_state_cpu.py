"""Loss with masters and moments in 14, 10 and 7 bytes against AdamW in float32, on a processor.

The optimizers train a small language model, which sees eight bytes and tells the next, on Python's
own source: 1,000 steps, the same batches and first weights for each. The weights are bf16, and what
is computed with them float32, so that nothing but the optimizer's state differs in kind. (See
optimizer_state.py for whole runs.) Prints a table and writes benchmarks/results.
Run: PYTHONPATH=src python3 benchmarks/training/optimizer_state_cpu.py [--out FILE.json]
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from stepladder.train.optimizer.compact.compact_adam import CompactAdam, Identity
from stepladder.train.optimizer.master_weights import MasterAdam

CONTEXT, WIDTH, EMBEDDED, ROWS, WARMUP, LAST = 8, 48, 16, 128, 50, 200
ADAM: dict[str, Any] = {"lr": 3e-3, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
SIZES = (0, 16, 14, 10, 7)  # 0: AdamW in float32
SOURCE = Path(argparse.__file__).parent
FILES = ("argparse.py", "ast.py", "inspect.py", "typing.py", "tarfile.py", "threading.py")


def first_weights(seed: int) -> list[Tensor]:
    draw = torch.Generator().manual_seed(seed)
    wide = EMBEDDED * CONTEXT
    shapes = [(256, EMBEDDED), (wide, 2 * WIDTH), (2 * WIDTH, WIDTH), (WIDTH, 256)]
    scales = [0.1, wide**-0.5, (2 * WIDTH) ** -0.5, 0.02]
    made = [torch.randn(shape, generator=draw) * k for shape, k in zip(shapes, scales)]
    return [*made, torch.ones(2 * WIDTH)]


def loss_of(parameters: list[nn.Parameter], read: Tensor, told: Tensor) -> Tensor:
    embedding, first, second, head, scale = (p.float() for p in parameters)
    hidden = functional.embedding(read, embedding).flatten(1) @ first
    hidden = functional.gelu(functional.rms_norm(hidden, hidden.shape[1:]) * scale)
    return functional.cross_entropy(functional.gelu(hidden @ second) @ head, told)


def optimizer_of(size: int, values: list[Tensor], seed: int) -> torch.optim.Optimizer:
    if not size:
        return torch.optim.AdamW([nn.Parameter(value) for value in values], **ADAM)
    parameters = [nn.Parameter(value.bfloat16()) for value in values]
    groups, masters = [{"params": parameters}], dict(zip(parameters, values))
    if size == 16:
        return MasterAdam(groups, masters, **ADAM)
    names = {p: Identity(str(index)) for index, p in enumerate(parameters)}
    return CompactAdam(groups, masters, bytes_each=size, identities=names, seed=seed, **ADAM)


def train(size: int, seed: int, steps: int, text: Tensor) -> list[float]:
    optimizer = optimizer_of(size, first_weights(seed), seed)
    [group] = optimizer.param_groups
    draw, losses = torch.Generator().manual_seed(1), []
    for step in range(steps):
        group["lr"] = ADAM["lr"] * min(1, (step + 1) / WARMUP) * (1 - 0.9 * step / steps)
        at = torch.randint(0, len(text) - CONTEXT - 1, (ROWS,), generator=draw)
        read = text[at[:, None] + torch.arange(CONTEXT)]
        loss = loss_of(group["params"], read, text[at + CONTEXT])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", default="benchmarks/results/optimizer_state_cpu.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    text = torch.tensor(list(b"".join((SOURCE / name).read_bytes() for name in FILES)))
    rows: list[dict[str, Any]] = []
    print("| bytes a parameter | loss of the last 200 steps | from fp32, by seed |\n|---|---|---|")
    for size in SIZES:
        curves = [train(size, seed, options.steps, text) for seed in range(options.seeds)]
        finals = [statistics.mean(curve[-LAST:]) for curve in curves]
        exact = rows[0]["finals"] if rows else finals
        apart = [final / other - 1 for final, other in zip(finals, exact)]
        rows.append({"bytes": size or "fp32", "finals": finals, "apart": apart})
        told = ", ".join(f"{share:+.2%}" for share in apart)
        print(f"| {size or 'fp32'} | {statistics.mean(finals):.4f} | {told} |", flush=True)
    result = {
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{platform.machine()}, one thread",
        "torch": torch.__version__,
        "command": "python benchmarks/training/optimizer_state_cpu.py",
        "steps": options.steps,
        "rows": rows,
    }
    Path(options.out).write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
