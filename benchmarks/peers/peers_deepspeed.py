"""ZeRO 1, 2 and 3 of DeepSpeed beside ours (FSDP2): the same module, weights and batches.

    python benchmarks/peers/peers_deepspeed.py [--rounds 8] [--write]

Two ranks as real processes over gloo. For each stage and optimizer both engines stand in the same
processes: each is measured alone first (tensor bytes that a rank holds between steps and at the
peak of a step, as the same ledger counts them), then they take steps in turn, so that a slow moment
of the machine hits both. The ratio of times is the median over rounds. Losses are held against a
plain loop on one device over the batches of both ranks.

DeepSpeed is no dependency of the project. An environment of its own, and why nothing is compiled:

    python -m venv peers && peers/bin/pip install torch==2.13.0 numpy psutil deepspeed==0.19.8
    PYTHONPATH=src peers/bin/python benchmarks/peers/peers_deepspeed.py

Its operator for shared memory between CPU ranks is switched off: it is built by a C++ compiler when
first used. Its buckets are set to the size of a block, and no parameter stays whole for being
small: with its defaults a module of this size would travel and stand in one piece.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from datetime import date
from functools import partial
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

RESULTS = Path(__file__).parents[1] / "results"
RANKS, ROWS, STEPS = 2, 8, 6  # rows of a rank; steps whose losses are compared
WIDTH, BLOCKS, CLASSES = 192, 6, 64
OPTIMIZERS: dict[str, tuple[str, Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]]] = {
    "SGD": ("sgd lr=0.1", partial(torch.optim.SGD, lr=0.1)),
    "AdamW": (
        "adamw lr=0.001 wd=0.01 betas=0.9,0.999",
        partial(torch.optim.AdamW, lr=1e-3, weight_decay=0.01, betas=(0.9, 0.999)),
    ),
}
MIB = 2**20
Step = Callable[[int], float]  # takes the step of that index; this rank's mean loss


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.tanh(self.up(self.norm(x))))


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def make() -> nn.Module:
    torch.manual_seed(0)
    return Stack()


def rows_of(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(1000 * step + rank)
    inputs = torch.randn(ROWS, WIDTH, generator=draw)
    return inputs, torch.randint(0, CLASSES, (ROWS,), generator=draw)


def ours(stage: int, optimizer: str, rank: int) -> Step:
    from stepladder.train import climb

    plan = f"fp32 zero{stage} shard={RANKS} micro={ROWS}"
    run = climb(make(), loss="cross_entropy", plan=plan, optimizer=OPTIMIZERS[optimizer][0],
                device="cpu")  # fmt: skip
    return lambda step: run.step(rows_of(step, rank), rows="rank").read().loss


def deepspeeds(stage: int, optimizer: str, rank: int) -> Step:
    import deepspeed

    module = make()
    block = sum(parameter.numel() for parameter in module.blocks[0].parameters())
    zero = {"stage": stage, "overlap_comm": False, "reduce_bucket_size": block,
            "allgather_bucket_size": block, "stage3_prefetch_bucket_size": block,
            "stage3_max_live_parameters": 2 * block, "stage3_max_reuse_distance": 0,
            "stage3_param_persistence_threshold": 0}  # fmt: skip
    engine, *_ = deepspeed.initialize(
        model=module, optimizer=OPTIMIZERS[optimizer][1](module.parameters()),
        config={"train_micro_batch_size_per_gpu": ROWS, "gradient_accumulation_steps": 1,
                "zero_allow_untested_optimizer": True, "gradient_clipping": 0.0,
                "zero_optimization": zero},
    )  # fmt: skip

    def step(index: int) -> float:
        inputs, targets = rows_of(index, rank)
        loss = cross_entropy(engine(inputs), targets)
        engine.backward(loss)
        engine.step()
        return mean_over_ranks(loss.item())

    return step


def mean_over_ranks(value: float) -> float:
    total = torch.tensor(value, dtype=torch.float64)
    torch.distributed.all_reduce(total)
    return total.item() / RANKS


def plain_losses(optimizer: str) -> list[float]:
    """One device over the rows of all ranks, by torch alone."""
    module = make()
    update, losses = OPTIMIZERS[optimizer][1](module.parameters()), []
    for step in range(STEPS):
        parts = [rows_of(step, rank) for rank in range(RANKS)]
        inputs, targets = (torch.cat(pair) for pair in zip(*parts))
        loss = cross_entropy(module(inputs), targets)
        update.zero_grad()
        loss.backward()
        update.step()
        losses.append(loss.item())
    return losses


def storages() -> dict[int, int]:
    """Bytes of every storage that a tensor of this process lies in, by its address."""
    gc.collect()
    found: dict[int, int] = {}
    for each in [thing for thing in gc.get_objects() if isinstance(thing, torch.Tensor)]:
        for tensor in (each, each.grad if each.is_leaf else None):
            local = getattr(tensor, "_local_tensor", tensor)
            if local is not None and local.device.type == "cpu":
                storage = local.untyped_storage()
                if storage.nbytes():
                    found[storage.data_ptr()] = storage.nbytes()
    return found


def measure_engine(build: Callable[[], Step]) -> tuple[Step, dict[str, Any]]:
    """The engine, and its losses, bytes between steps, and bytes at the peak of a step."""
    from stepladder.measure.storage_ledger import Ledger

    before = storages()
    step = build()
    losses = [step(index) for index in range(STEPS)]
    held = sum(size for where, size in storages().items() if where not in before)
    there = sum(before.values())
    with Ledger(torch.device("cpu")) as ledger:
        for tensor in [thing for thing in gc.get_objects() if isinstance(thing, torch.Tensor)]:
            if tensor.device.type == "cpu" and not hasattr(tensor, "_local_tensor"):
                ledger.admit(tensor)
        step(0)
    peak = ledger.peak_bytes - there
    return step, {"losses": losses, "held_bytes": held, "peak_bytes": peak}


def compare(stage: int, optimizer: str, rank: int, rounds: int) -> dict[str, Any]:
    """Both engines on one rank: each alone, then in turns."""
    mine, own = measure_engine(partial(ours, stage, optimizer, rank))
    theirs, other = measure_engine(partial(deepspeeds, stage, optimizer, rank))
    seconds: dict[str, list[float]] = {"ours": [], "deepspeed": []}
    for index in range(rounds):
        for name, step in (("ours", mine), ("deepspeed", theirs)):
            torch.distributed.barrier()
            began = time.perf_counter()
            step(index)
            step(index)
            seconds[name].append((time.perf_counter() - began) / 2)
    return {"ours": own, "deepspeed": other, "seconds": seconds}


def run_rank(rank: int, rounds: int, out: Path) -> None:
    os.environ["DS_ACCELERATOR"] = "cpu"
    import deepspeed

    torch.set_num_threads(1)
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed("gloo")
    found = {"deepspeed": deepspeed.__version__, "rows": {}}
    for stage, optimizer in product((1, 2, 3), OPTIMIZERS):
        found["rows"][f"{stage} {optimizer}"] = compare(stage, optimizer, rank, rounds)
        out.write_text(json.dumps(found))
        if rank == 0:
            print(f"ZeRO {stage} {optimizer}", file=sys.stderr, flush=True)
    torch.distributed.barrier()
    os._exit(0)  # DeepSpeed's own end waits for what is gone


def start_ranks(rounds: int, folder: Path) -> list[dict[str, Any]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    outs = [folder / f"rank{rank}.json" for rank in range(RANKS)]
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, "--rank", str(rank), "--rounds", str(rounds), "--out", out],
            env={**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1",
                 "WORLD_SIZE": str(RANKS), "LOCAL_WORLD_SIZE": str(RANKS),
                 "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port},
        )
        for rank, out in enumerate(outs)
    ]  # fmt: skip
    if any(process.wait() for process in ranks):
        raise SystemExit("a rank failed; its own message is above")
    return [json.loads(out.read_text()) for out in outs]


def rows_from(ranks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each stage, optimizer and engine: of the fullest rank, and of its slowest."""
    rows = []
    for key in ranks[0]["rows"]:
        stage, optimizer = key.split()
        each = [rank["rows"][key] for rank in ranks]
        plain = plain_losses(optimizer)
        slower = [
            max(e["seconds"]["deepspeed"][i] for e in each)
            / max(e["seconds"]["ours"][i] for e in each)
            for i in range(len(each[0]["seconds"]["ours"]))
        ]
        for engine in ("ours", "deepspeed"):
            losses = each[0][engine]["losses"]
            rows.append({
                "stage": int(stage), "optimizer": optimizer, "engine": engine,
                "held_mib": max(e[engine]["held_bytes"] for e in each) / MIB,
                "peak_mib": max(e[engine]["peak_bytes"] for e in each) / MIB,
                "times_ours": 1.0 if engine == "ours" else statistics.median(slower),
                "loss_difference": max(abs(a - b) / abs(b) for a, b in zip(losses, plain)),
            })  # fmt: skip
    return rows


def markdown(kept: dict[str, Any]) -> str:
    lines = [
        "# ZeRO beside DeepSpeed", "",
        f"{kept['date']}, {kept['machine']}, torch {kept['torch']}, DeepSpeed {kept['deepspeed']}, "
        f"`python benchmarks/peers/peers_deepspeed.py`.", "",
        "| ZeRO | optimizer | engine | MiB between steps | MiB at the peak | step, times ours | "
        "loss off a plain loop |", "|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for row in kept["rows"]:
        lines.append(
            f"| {row['stage']} | {row['optimizer']} | {row['engine']} | {row['held_mib']:.2f} | "
            f"{row['peak_mib']:.2f} | {row['times_ours']:.2f} | {row['loss_difference']:.1e} |"
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    reader = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    reader.add_argument("--rounds", type=int, default=8)
    reader.add_argument("--write", action="store_true", help="keep the table in results/")
    reader.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    reader.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    options = reader.parse_args()
    if find_spec("deepspeed") is None:
        raise SystemExit("DeepSpeed is not installed: the head of this file says how to have it.")
    if options.rank is not None:
        run_rank(options.rank, options.rounds, options.out)
    with tempfile.TemporaryDirectory() as folder:
        ranks = start_ranks(options.rounds, Path(folder))
    kept = {
        "date": str(date.today()),
        "machine": f"CPU, {os.cpu_count()} cores, {platform.machine()}, gloo",
        "torch": torch.__version__, "deepspeed": ranks[0]["deepspeed"],
        "load": round(os.getloadavg()[0], 1), "rows": rows_from(ranks),
    }  # fmt: skip
    print(markdown(kept))
    if options.write:
        (RESULTS / "peers_deepspeed.json").write_text(json.dumps(kept, indent=1) + "\n")
        (RESULTS / "peers_deepspeed.md").write_text(markdown(kept))
    return 0


if __name__ == "__main__":
    sys.exit(main())
