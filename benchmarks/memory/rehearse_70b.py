"""One rank of 512 rehearsed for Llama 3 70B under zero3: seconds, and the memory of this process.

    python benchmarks/memory/rehearse_70b.py [--model NAME] [--ranks N] [--out FILE.json]

Seconds are those of the processor, which other work beside it does not change.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import time
from pathlib import Path

import torch

import stepladder as sl
from stepladder.rehearse import rehearse

PLAN, TOKENS = "bf16 zero3 micro=1 recompute=blocks", 4096


def main() -> None:
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument("--model", default="llama3-70b")
    reader.add_argument("--ranks", type=int, default=512)
    reader.add_argument("--out", type=Path)
    options = reader.parse_args()
    torch.set_num_threads(1)
    wall, began = time.perf_counter(), time.process_time()
    module = sl.build(options.model, device="meta", sequence=TOKENS)
    ids = torch.zeros(1, TOKENS, dtype=torch.long)
    found = rehearse(module, PLAN, sample=(ids, ids), loss="cross_entropy", ranks=options.ranks)
    kept = {
        "date": time.strftime("%Y-%m-%d"), "machine": platform.machine(),
        "torch": torch.__version__, "model": options.model, "plan": found.plan,
        "ranks": options.ranks, "processor_seconds": time.process_time() - began,
        "seconds": time.perf_counter() - wall,
        "resident_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "allocated_gib": found.allocated_bytes / 2**30,
        "reserved_gib": found.reserved_bytes / 2**30,
        "phase": found.phase, "allocations": found.allocations,
    }  # fmt: skip
    print(json.dumps(kept, indent=1))
    if options.out:
        options.out.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
