"""Peak memory rehearsed against measured on a GPU, for modules of other projects.

    python benchmarks/memory_gpu.py [--only NAME,NAME] [--seconds N] [--out FILE.json]

Each module trains three steps under each plan; `torch.cuda.max_memory_allocated` and
`max_memory_reserved` are the measurement. Rehearsals run beside it in other processes, on tensors
without numbers. Cases that do not fit into the seconds are left out. The table is written beside
the JSON.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import statistics
import sys
import time
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

import stepladder as sl
from stepladder.rehearse import rehearse

sys.path.insert(0, str(Path(__file__).parent / "zoo"))

RESULTS = Path(__file__).parent / "results" / "memory_gpu.json"
NAMES = (
    "gpt2", "bert", "hand_gpt", "vit_b_16", "resnet50", "unet", "qwen2", "llama", "t5", "dit",
    "mixer", "convnext", "two_towers", "opt", "swin", "efficientnet_v2", "gemma2", "modernbert",
)  # fmt: skip
PLANS = ("fp32", "bf16", "bf16 recompute=blocks", "bf16-pure")
OPTIMIZER, STEPS, MIB = "adamw lr=1e-4 clip=1", 3, 2**20


def case_of(name: str) -> Any:
    from real_sizes import CASES

    torch.manual_seed(0)
    return CASES[name]()


def rehearsed(name: str) -> list[dict[str, Any]]:
    """What a rehearsal says of each plan; runs in a process of its own."""
    torch.set_num_threads(1)
    case = case_of(name)
    return [rehearse_one(case, plan) for plan in PLANS]


def rehearse_one(case: Any, plan: str) -> dict[str, Any]:
    began = time.perf_counter()
    try:
        found = rehearse(
            case.module, plan, sample=case.batch, loss=case.loss, optimizer=OPTIMIZER
        ).to_dict()
    except Exception as failed:  # one module must not end the others
        return {"failed": f"{type(failed).__name__}: {str(failed)[:200]}"}
    return {**found, "seconds": time.perf_counter() - began}


def measured(name: str, plan: str) -> dict[str, Any]:
    case = case_of(name)
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    try:
        run = sl.climb(
            case.module, loss=case.loss, optimizer=OPTIMIZER, plan=plan, sample=case.batch
        )
        for _ in range(STEPS):
            report = run.step(case.batch)
        float(report.loss)
    except Exception as failed:
        return {"failed": f"{type(failed).__name__}: {str(failed)[:200]}"}
    stats = torch.cuda.memory_stats()
    return {
        "before": before,
        "allocated_bytes": torch.cuda.max_memory_allocated(),
        "reserved_bytes": torch.cuda.max_memory_reserved(),
        "requested_bytes": stats.get("requested_bytes.all.peak", 0),
        "between_steps": torch.cuda.memory_allocated(),
    }


def main() -> None:
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument("--only", default=",".join(NAMES))
    reader.add_argument("--seconds", type=float, default=75)
    reader.add_argument("--out", type=Path, default=RESULTS)
    options = reader.parse_args()
    end, names = time.monotonic() + options.seconds, options.only.split(",")
    pool = ProcessPoolExecutor(3, get_context("spawn"))
    promised: dict[str, Future[Any]] = {name: pool.submit(rehearsed, name) for name in names}
    rows: list[dict[str, Any]] = []
    for name in names:
        if time.monotonic() > end - 8:
            break
        rows += [{"name": name, "plan": plan, "measured": measured(name, plan)} for plan in PLANS]
    for row in rows:
        try:
            left = max(0.1, end - time.monotonic())
            said = promised[row["name"]].result(left)[PLANS.index(row["plan"])]
        except Exception as failed:
            said = {"failed": type(failed).__name__}
        row["rehearsed"] = said
    write(options.out, rows)
    for process in list(pool._processes.values()):
        process.terminate()
    pool.shutdown(wait=False, cancel_futures=True)


def error(row: dict[str, Any], key: str) -> float | None:
    if "failed" in row["measured"] or "failed" in row["rehearsed"]:
        return None
    return row["rehearsed"][key] / row["measured"][key] - 1


def write(out: Path, rows: list[dict[str, Any]]) -> None:
    device = torch.cuda.get_device_name()
    out.write_text(json.dumps({"device": device, "torch": torch.__version__, "rows": rows}))
    lines = [
        f"# Peak memory, rehearsed against measured\n\n{time.strftime('%Y-%m-%d')}, {device}, "
        f"{platform.machine()}, torch {torch.__version__}. "
        "Command: `python benchmarks/memory_gpu.py`.\n",
        summary(rows),
        "\n| module | plan | allocated MiB | error | reserved MiB | error | peak in |",
        "|---|---|---:|---:|---:|---:|---|",
    ]
    for row in rows:
        if (wrong := error(row, "allocated_bytes")) is None:
            failed = row["measured"].get("failed") or row["rehearsed"].get("failed")
            lines.append(f"| {row['name']} | {row['plan']} | {failed} | | | | |")
            continue
        real, said = row["measured"], row["rehearsed"]
        lines.append(
            f"| {row['name']} | {row['plan']} | {real['allocated_bytes'] / MIB:,.0f} "
            f"| {wrong:+.1%} | {real['reserved_bytes'] / MIB:,.0f} "
            f"| {error(row, 'reserved_bytes'):+.1%} | {said['phase']} {said['module']} |"
        )
    text = "\n".join(lines) + "\n"
    out.with_suffix(".md").write_text(text)
    print(text)


def summary(rows: list[dict[str, Any]]) -> str:
    said = []
    for key in ("allocated_bytes", "reserved_bytes"):
        found = [wrong for row in rows if (wrong := error(row, key)) is not None]
        if found:
            sizes = sorted(map(abs, found))
            most = sizes[int(0.95 * len(sizes)) - 1]
            said.append(
                f"{key.removesuffix('_bytes').capitalize()}: {len(found)} cases, median "
                f"{statistics.median(sizes):.1%}, 95 % within {most:.1%}, "
                f"furthest low {min(found):+.1%}."
            )
    return "\n".join(said)


if __name__ == "__main__":
    main()
