"""What autotuning cuBLASLt's algorithms gains in a training step, and what it costs in power.

    PYTHONPATH=src python3 benchmarks/kernels/matmul_gpu.py [llama1b gpt] [--turns 4] [--out FILE]

One run of peers_gpu.py's shapes alternates between the tuned algorithms and torch's own
matmuls, in one process, with the same compiled code. Beside each turn stand the watts and the clock
that `nvidia-smi` reads: a GPU at its power limit lowers its clock for an algorithm that is faster
and draws more, so a gain in a matmul alone may be none in a step.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch

from stepladder.kernels.matmul import autotune, matmul

sys.path.append(str(Path(__file__).parents[1] / "peers"))
import peers_gpu as contests

PLAN = "bf16-master compile=on kernels=on"


class Meter:
    """Watts and megahertz, five times a second."""

    def __init__(self) -> None:
        self.readings: list[tuple[float, float, float]] = []
        words = ["--query-gpu=power.draw,clocks.sm", "--format=csv,noheader,nounits", "-lms", "200"]
        self.reader = subprocess.Popen(["nvidia-smi", *words], stdout=subprocess.PIPE, text=True)
        threading.Thread(target=self.read, daemon=True).start()

    def read(self) -> None:
        for text in self.reader.stdout or ():
            watts, clock = (float(word) for word in text.split(","))
            self.readings.append((time.perf_counter(), watts, clock))

    def since(self, begun: float) -> tuple[float | None, float | None]:
        seen = [each for each in self.readings if each[0] > begun + 0.2]
        return (mean(e[1] for e in seen), mean(e[2] for e in seen)) if seen else (None, None)


def compare(name: str, turns: int, meter: Meter) -> dict[str, Any]:
    contest = contests.CONTESTS[name]
    batches = contests.make_batches(contest)
    entry = contests.enter(PLAN, contest, batches)
    chosen = dict(matmul.TUNED)
    rows: dict[str, list[dict[str, Any]]] = {"torch": [], "chosen": []}
    for _ in range(turns):
        for kind, taken in rows.items():
            matmul.TUNED.update(chosen if kind == "chosen" else dict.fromkeys(chosen))
            begun = time.perf_counter()
            contests.take_turn(entry, batches, 20 if name == "gpt" else 4)
            watts, clock = meter.since(begun)
            taken.append({"ms": 1e3 * entry.seconds[-1], "watts": watts, "megahertz": clock})
    matmul.TUNED.update(chosen)
    plain, ours = (median(each["ms"] for each in rows[kind]) for kind in rows)
    tuned = sum(each is not None for each in chosen.values())
    print(f"{name}: torch's matmuls {plain:.2f} ms, chosen {ours:.2f} ms ({plain / ours:.4f} x);"
          f" {tuned} of {len(chosen)} shapes are tuned")  # fmt: skip
    for kind, taken in rows.items():
        for each in taken:
            print(f"  {kind:7} {each['ms']:8.2f} ms  {each['watts']} W  {each['megahertz']} MHz")
    return {"contest": name, "plan": PLAN, "ratio": plain / ours, "turns": rows,
            "choices": dict(autotune.saved_choices())}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("contests", nargs="*", default=["llama1b", "gpt"])
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--out", type=Path, default=contests.RESULTS / "matmul_gpu.json")
    options = parser.parse_args()
    meter = Meter()
    rows = [compare(name, options.turns, meter) for name in options.contests]
    meter.reader.kill()
    about = {"date": time.strftime("%Y-%m-%d"), "machine": torch.cuda.get_device_name(),
             "torch": torch.__version__}  # fmt: skip
    options.out.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
