"""What recomputation costs the host, by the block and by the launch, and how the two divide.

    PYTHONPATH=src python3 benchmarks/planner/host_costs.py [--rounds 100] [--out FILE]

Tiny blocks of two models, with autocast and without, at two depths, as `stepladder calibrate` times
them, but all side by side and in turns, and the lower quartile counts: what disturbs a host only
slows it. Fitted are seconds for a block and for each launch of its forward, once for blocks that
are computed again whole and once for those that choose what to keep. Their ratio is what
`HOST_FACTORS` of the planner holds; a calibration then tells how fast a host is.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from itertools import product
from pathlib import Path
from typing import Any

import torch

from stepladder.calibrate.launch_costs import TINY, recompute_rows
from stepladder.calibrate.probes import ASKED, USUAL_DEPTHS, WAYS, tiny_run
from stepladder.calibrate.two_costs import fit_two_costs
from stepladder.plan import Plan
from stepladder.record import Timing
from stepladder.world import synchronize

RECOMPUTED = {"blocks": "again", "selective": "chosen"}


def timed(rounds: int, device: torch.device) -> list[Timing]:
    """A pass of each, forward and backward: the lower quartile of its seconds."""
    probes = list(product(TINY, ASKED, USUAL_DEPTHS))
    runs = [
        tiny_run(TINY[kind].format(depth), Plan.parse(WAYS[way]), (1, 16), device)
        for kind, way, depth in probes
    ]
    seconds: list[list[float]] = [[] for _ in probes]
    for number in range(rounds + 2):
        for (run, batch), spent in zip(runs, seconds):
            synchronize(device)
            began = time.perf_counter()
            run.gradients(batch)
            synchronize(device)
            if number > 1:  # the first two warm up
                spent.append(time.perf_counter() - began)
            run.optimizer.zero_grad(set_to_none=True)
    return [
        Timing(kind, way, (depth,), sorted(spent)[len(spent) // 4])
        for (kind, way, depth), spent in zip(probes, seconds)
    ]


def costs(timings: list[Timing]) -> list[dict[str, Any]]:
    """For each way of recomputing, its rows and the two costs fitted to them."""
    found = []
    for way, word in RECOMPUTED.items():
        rows = [row for kind in TINY for row in recompute_rows(timings, kind, way)]
        block, launch = fit_two_costs(rows)
        found.append({
            "way": word, "rows": rows, "block_seconds": block, "launch_seconds": launch,
            "launches_of_a_block": block / launch if launch else None,
        })  # fmt: skip
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=100)
    default = Path(__file__).parents[1] / "results" / "host_costs.json"
    parser.add_argument("--out", type=Path, default=default)
    options = parser.parse_args()
    torch.set_num_threads(1)
    here = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    machine = torch.cuda.get_device_name() if here.type == "cuda" else platform.machine()
    found = costs(timed(options.rounds, here))
    for each in found:
        ratio = each["launches_of_a_block"]
        shown = "no launches" if ratio is None else f"{ratio:.0f} launches"
        print(f"{each['way']:8} a block costs as much as {shown} of its forward", flush=True)
    about = {"date": time.strftime("%Y-%m-%d"), "machine": machine, "torch": torch.__version__}
    options.out.write_text(json.dumps({**about, "costs": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
