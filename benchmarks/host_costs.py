"""What recomputation costs the host, by the block and by the launch, and how the two divide.

    PYTHONPATH=src python3 benchmarks/host_costs.py [--rounds 25] [--out FILE]

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

import torch

from stepladder.plan import Plan
from stepladder.profiler.launches import TINY, tiny_block
from stepladder.profiler.probes import WAYS, tiny_run
from stepladder.profiler.solve import two_costs
from stepladder.world import synchronize

DEPTHS = (2, 8)
RECOMPUTED = {"blocks": "again", "selective": "chosen"}
Key = tuple[str, str, int]


def timed(rounds: int, device: torch.device) -> dict[Key, float]:
    """The lower quartile of seconds of a pass, forward and backward."""
    ways = [way for way in WAYS if way != "compiled"]
    runs = {
        key: tiny_run(TINY[key[0]].format(key[2]), Plan.parse(WAYS[key[1]]), (1, 16), device)
        for key in product(TINY, ways, DEPTHS)
    }
    seconds: dict[Key, list[float]] = {key: [] for key in runs}
    for number in range(rounds + 2):
        for key, (run, batch) in runs.items():
            synchronize(device)
            began = time.perf_counter()
            run.gradients(batch)
            synchronize(device)
            if number > 1:  # the first two warm up
                seconds[key].append(time.perf_counter() - began)
            run.optimizer.zero_grad(set_to_none=True)
    return {key: sorted(each)[len(each) // 4] for key, each in seconds.items()}


def costs(seconds: dict[Key, float]) -> list[dict[str, object]]:
    """For each way of recomputing, its rows and the two costs fitted to them."""
    few, many = DEPTHS

    def block(kind: str, way: str) -> float:
        return (seconds[kind, way, many] - seconds[kind, way, few]) / (many - few)

    found = []
    for way, word in RECOMPUTED.items():
        rows = []
        for kind, before in product(TINY, ("", "pure")):
            launches = tiny_block(kind).launches
            number = launches.eager if before else launches.mixed
            added = block(kind, f"{before} {way}".strip()) - block(kind, before)
            rows.append((1.0, float(number), added))
        of_block, of_launch = two_costs(rows)
        found.append({
            "way": word, "rows": rows, "block_seconds": of_block, "launch_seconds": of_launch,
            "launches_of_a_block": of_block / of_launch if of_launch else None,
        })  # fmt: skip
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=25)
    default = Path(__file__).parent / "results" / "host_costs.json"
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
