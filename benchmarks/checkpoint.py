"""Saving and loading against torch.save and DCP on the same state, and what a save costs training.

    python benchmarks/checkpoint.py [--size 0.5] [--device cpu|cuda] [--out FILE.json]

All ways write the same tensors (a model and its Adam state) to the same disk, in turns, and each
forces its bytes to the disk before the clock stops. Ratios above 1 mean we are faster. A stall is
how long the training thread waits for a save, as a share of a save that waits for the disk.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.distributed.checkpoint as dcp

from stepladder.train import climb

ROUNDS = 5


def make(size_gib: float, device: str) -> Any:
    """A run whose parameters and Adam state take about so much."""
    width, layers = 1024, max(1, round(size_gib * 2**30 / (3 * 4 * 1024 * 1024)))
    module = torch.nn.Sequential(
        *(torch.nn.Linear(width, width, bias=False) for _ in range(layers))
    )
    run = climb(module, loss="squared_error", optimizer="adamw lr=1e-4", plan="fp32", device=device)
    run.step((torch.randn(4, width), torch.randn(4, width))).read()
    return run


def state_of(run: Any) -> dict[str, torch.Tensor]:
    named = {f"model.{name}": p.detach() for name, p in run.module.named_parameters()}
    for piece in run.climbed.pieces:
        for key, value in run.optimizer.state[piece.held].items():
            named[f"optimizer.{piece.name}.{key}"] = value
    return named


def force(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())


def timed(act: Callable[[], object], device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    act()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


class Ways:
    """The same state written and read in three ways."""

    def __init__(self, run: Any, root: Path, device: str) -> None:
        self.run, self.root, self.device = run, root, device

    def save_ours(self) -> None:
        self.run.save(self.root / "ours")

    def load_ours(self) -> None:
        self.run.load(self.root / "ours")

    def save_torch(self) -> None:
        self.fresh("torch")
        torch.save(state_of(self.run), self.root / "torch" / "state.pt")
        force(self.root / "torch")

    def load_torch(self) -> None:
        found = torch.load(
            self.root / "torch" / "state.pt", map_location=self.device, weights_only=True
        )
        for name, tensor in state_of(self.run).items():
            tensor.copy_(found[name])

    def save_dcp(self) -> None:
        self.fresh("dcp")
        dcp.save(state_of(self.run), checkpoint_id=self.root / "dcp", no_dist=True)
        force(self.root / "dcp")

    def load_dcp(self) -> None:
        dcp.load(state_of(self.run), checkpoint_id=self.root / "dcp", no_dist=True)

    def fresh(self, name: str) -> None:
        shutil.rmtree(self.root / name, ignore_errors=True)
        (self.root / name).mkdir()


def throughput(ways: Ways, size: int) -> dict[str, Any]:
    seconds: dict[str, list[float]] = {}
    for _ in range(ROUNDS):
        for act in ("save", "load"):
            for way in ("ours", "torch", "dcp"):
                taken = timed(getattr(ways, f"{act}_{way}"), ways.device)
                seconds.setdefault(f"{act} {way}", []).append(taken)
    median = {name: statistics.median(times[1:]) for name, times in seconds.items()}
    return {
        "save over torch.save": median["save torch"] / median["save ours"],
        "save over DCP": median["save dcp"] / median["save ours"],
        "load over torch.load": median["load torch"] / median["load ours"],
        "load over DCP": median["load dcp"] / median["load ours"],
        "spread": {n: max(t[1:]) / min(t[1:]) for n, t in seconds.items()},
        "ours, GiB/s": {a: size / 2**30 / median[f"{a} ours"] for a in ("save", "load")},
    }


def stall(run: Any, root: Path, device: str) -> dict[str, Any]:
    """How long training waits for a save in the background, against one that it waits for."""
    process, waits, whole = psutil.Process(), [], []
    run.save(root / "background", wait=False)  # the first makes the buffers
    run.finish_saving()
    held = process.memory_info().rss
    for _ in range(ROUNDS):
        whole.append(timed(lambda: run.save(root / "waiting"), device))
        waits.append(timed(lambda: run.save(root / "background", wait=False), device))
        run.finish_saving()
    return {
        "stall": statistics.median(waits) / statistics.median(whole),
        "host memory it added, share of the state": None,
        "host memory after many, GiB more": (process.memory_info().rss - held) / 2**30,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=float, default=0.5, help="GiB of state")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    run = make(options.size, options.device)
    size = sum(tensor.nbytes for tensor in state_of(run).values())
    with tempfile.TemporaryDirectory(dir=".") as folder:
        root = Path(folder)
        host_before = psutil.Process().memory_info().rss
        found = throughput(Ways(run, root, options.device), size)
        paused = stall(run, root, options.device)
        paused["host memory it added, share of the state"] = (
            sum(b.nbytes for b in run.saver.buffers.values()) / size
        )
        paused["host memory of all, GiB"] = (
            psutil.Process().memory_info().rss - host_before
        ) / 2**30
    device = (
        torch.cuda.get_device_name() if options.device == "cuda" else platform.processor() or "cpu"
    )
    result = {
        "date": date.today().isoformat(), "device": device, "torch": torch.__version__,
        "state GiB": size / 2**30, "rounds": ROUNDS, **found, **paused,
    }  # fmt: skip
    text = json.dumps(result, indent=2)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
