"""How long a second start takes to its first step, against the hand-written loop's.

    python benchmarks/second_start_gpu.py [--only NAME,NAME] [--tune SECONDS] [--results FILE]

For each module one process fills torch's compile cache with both loops and lets `auto` try its
plans; then the hand-written loop and `auto` are started anew, each in a process of its own that
finds the same cache. Seconds are from a module on the host to the loss of its first step, with all
imports of the compiler; the median of three starts.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent / "zoo"))

from loops import DEVICE, make_loop, read
from real_sizes import CASES

RESULTS = Path(__file__).parent / "results" / "second_start_gpu.json"
STARTS, LIMIT = 3, 1.2  # fresh processes of each loop; how much longer ours may take
ARMS = ("hand", "auto")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="hand_gpt,unet,two_towers,lstm")
    parser.add_argument("--tune", type=float, default=60.0)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--start", help=argparse.SUPPRESS)
    options = parser.parse_args()
    names = options.only.split(",")
    if options.start:
        print(json.dumps(first_step(names[0], options.start.split(","), options.tune)))
        return 0
    with TemporaryDirectory() as choices:
        around = {**os.environ, "XDG_CACHE_HOME": choices, "STEPLADDER_PROBE": "off"}
        rows = [measure(name, options.tune, around) for name in names]
    options.results.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


def measure(name: str, tune: float, around: dict[str, str]) -> dict[str, Any]:
    """A module's row: medians over fresh processes, and their ratio."""
    start(name, ARMS, tune, around)
    seconds: dict[str, list[float]] = {arm: [] for arm in ARMS}
    for _ in range(STARTS):
        for arm in ARMS:
            seconds[arm] += start(name, (arm,), tune, around)
    hand, ours = (statistics.median(seconds[arm]) for arm in ARMS)
    row = {
        "module": name,
        "hand_seconds": round(hand, 2),
        "auto_seconds": round(ours, 2),
        "ratio": round(ours / hand, 3),
        "within": ours <= LIMIT * hand,
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if DEVICE.type == "cuda" else "processor",
        "date": time.strftime("%Y-%m-%d"),
    }
    print(json.dumps(row), flush=True)
    return row


def start(name: str, arms: tuple[str, ...], tune: float, around: dict[str, str]) -> list[float]:
    """Start loops one after the other in a new process; the seconds to their first losses."""
    command = [sys.executable, __file__, "--only", name, "--tune", str(tune)]
    command += ["--start", ",".join(arms)]
    done = subprocess.run(command, env=around, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{name} failed:\n{done.stderr[-2000:]}")
    found: list[float] = json.loads(done.stdout.splitlines()[-1])
    return found


def first_step(name: str, arms: list[str], tune: float) -> list[float]:
    torch.manual_seed(0)
    case, seconds = CASES[name](), []
    for arm in arms:
        began = time.monotonic()
        loop = make_loop(arm, case, f"tune={tune:g}")
        read(loop.step(case.batch))
        seconds.append(time.monotonic() - began)
    return seconds


if __name__ == "__main__":
    raise SystemExit(main())
