"""fp32 / tf32 / fp16 / bf16 (and what else the GPU can) for GPT-2 124M and ResNet-50, on one GPU.

Prints the tables the README quotes and writes benchmarks/results/precisions_gpu.json: time per
step, speed-up, memory by owner with its sum against the allocator's peak, loss after the same
steps. Run: PYTHONPATH=src python3 benchmarks/training/precisions_gpu.py [--out FOLDER]
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, replace
from pathlib import Path

import torch

from stepladder.bench import make_workload
from stepladder.bench.time_plans import measure_plans
from stepladder.plan import Optimizer, Plan

PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "bf16-pure", "bf16 compile=on", "fp8 compile=on")
WORKLOADS = (("gpt2", 16, 1024), ("resnet50", 64, 0))
ADAMW = Optimizer.parse("adamw lr=3e-4 wd=0.1 clip=1")


def measure(name: str, batch: int, sequence: int) -> dict[str, object]:
    workload = make_workload(name, batch=batch, sequence=sequence or 1, device="cuda")
    plans = [(text, replace(Plan.parse(text), optimizer=ADAMW)) for text in PRECISIONS]
    rows = []
    for row in measure_plans(workload, plans, warmup=5, steps=20):
        entry = {**asdict(row), "peak_gib": row.peak_gib}
        if row.memory:
            # `temporary` is what the allocator saw beyond the owners that were tracked, so the
            # whole sums up by construction; this share does not.
            named = row.memory.allocated_bytes - row.memory.temporary
            entry["tracked_owners_over_peak"] = named / row.memory.allocated_bytes
        rows.append(entry)
        print(summary(name, row), flush=True)
    return {"model": name, "batch": batch, "sequence": sequence, "rows": rows}


def summary(name: str, row) -> str:
    if row.step_ms is None:
        return f"{name:10} {row.name:16} {row.problem}"
    mfu = "unknown" if row.mfu is None else f"{row.mfu:.1%}"
    return (
        f"{name:10} {row.name:16} {row.step_ms:8.2f} ms ±{row.spread:.1%}  "
        f"{row.tokens_per_second:10,.0f} targets/s  MFU {mfu}  peak {row.peak_gib:6.2f} GiB  "
        f"loss {row.loss:.4f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default="benchmarks/results")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("device: this table is of a GPU and this machine has none.")
    result: dict[str, object] = {
        "date": time.strftime("%Y-%m-%d"),
        "machine": torch.cuda.get_device_name(),
        "torch": torch.__version__,
    }
    folder = Path(options.out)
    folder.mkdir(parents=True, exist_ok=True)
    tables: list[object] = []
    for workload in WORKLOADS:  # written after each, so that nothing is lost when time runs out
        tables.append(measure(*workload))
        text = json.dumps({**result, "tables": tables}, indent=2)
        (folder / "precisions_gpu.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
