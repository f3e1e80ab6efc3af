"""What reading a tokenised file costs a GPU: the same run fed from a file and from memory.

    PYTHONPATH=src python3 benchmarks/data/loader_gpu.py [--steps 30] [--rounds 3] [--out FILE]

The file is the Python standard library's source, two bytes a token, written once and again until
it holds 200 million tokens; windows are read in a shuffled order, moved to pinned memory and to
the device ahead of need, as `run.batches` does for everybody. Turns alternate with a batch that is
on the device already. `waited` is what the host waited for a batch; on a machine without a GPU the
same with a small model, so that it can be tried out.
"""

from __future__ import annotations

import argparse
import json
import sysconfig
import tempfile
import time
from itertools import islice, repeat
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

import stepladder as sl
from stepladder.data import TokenFile
from stepladder.model import build

GPU = torch.cuda.is_available()
RESULTS = Path(__file__).parents[1] / "results" / "loader_gpu.json"
VOCABULARY = 50_304 if GPU else 512
MODEL = (
    f"gpt:layers=12,hidden=768,heads=12,vocab={VOCABULARY},sequence=1024,tied=1"
    if GPU
    else f"gpt:layers=2,hidden=32,heads=2,vocab={VOCABULARY},sequence=64,tied=1"
)
ROWS, LENGTH, TOKENS = (32, 1024, 200_000_000) if GPU else (4, 64, 1_000_000)
PLAN = "bf16-master compile=on kernels=on" if GPU else "fp32"


def write(path: Path) -> None:
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    text = b"".join(file.read_bytes() for file in files)
    pairs = np.frombuffer(text[: len(text) // 2 * 2], np.uint16) % VOCABULARY
    with path.open("wb") as file:
        for _ in range(-(-TOKENS // len(pairs))):
            file.write(pairs.astype(np.uint16).tobytes())


def turn(run: Any, feed: Any, steps: int) -> tuple[float, float]:
    """Seconds a step, and of those waiting for a batch."""
    waited = 0.0
    wait()
    begun = time.perf_counter()
    for _ in range(steps):
        asked = time.perf_counter()
        batch = next(feed)
        waited += time.perf_counter() - asked
        run.step(batch)
    wait()
    return (time.perf_counter() - begun) / steps, waited / steps


def wait() -> None:
    if GPU:
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    run = sl.climb(
        build(MODEL), loss="cross_entropy", optimizer="adamw lr=1e-4 clip=1", plan=PLAN,
        device="cuda" if GPU else "cpu",
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tokens.bin"
        write(path)
        source = TokenFile(path, LENGTH, vocabulary=VOCABULARY)
        feed = run.batches(source, size=ROWS, seed=0)
        feeds = {"a tokenised file": feed, "memory of the device": repeat(next(feed))}
        for batch in islice(feed, 3):
            run.step(batch)
        turns: dict[str, list[tuple[float, float]]] = {name: [] for name in feeds}
        for _ in range(options.rounds):
            for name, given in feeds.items():
                turns[name].append(turn(run, given, options.steps))
        feed.close()
    rows = []
    for name, taken in turns.items():
        seconds = median(step for step, _ in taken)
        waited = median(waited for _, waited in taken)
        rows.append({
            "fed from": name, "step_ms": 1e3 * seconds, "waited_ms": 1e3 * waited,
            "tokens_per_second": ROWS * LENGTH / seconds, "turns_ms": [1e3 * s for s, _ in taken],
        })  # fmt: skip
        print(
            f"{name:22} {1e3 * seconds:8.2f} ms  waited {1e3 * waited:.3f} ms  "
            f"{ROWS * LENGTH / seconds:,.0f} tokens/s", flush=True,
        )  # fmt: skip
    about = {
        "date": time.strftime("%Y-%m-%d"),
        "machine": torch.cuda.get_device_name() if GPU else "CPU",
        "torch": torch.__version__,
        "model": MODEL,
        "plan": PLAN,
        "tokens": TOKENS,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
