"""A GPU's allocated and reserved peak, measured, beside what a rehearsed step says beforehand.

    python benchmarks/memory_gpu.py --measure [--only NAME,NAME] [--plans "PLAN;PLAN"]   on a GPU
    python benchmarks/memory_gpu.py --rehearse                                           anywhere

The modules are those of `zoo_gpu.py`, at the size people train them. Measured are the second to the
fourth step, after the allocator's cache was emptied: the first also tries on a copy what the loss is
a mean over. Rehearsing reads the rows that were measured and adds what `sl.rehearse` finds for the
same module, plan and batch, on a machine that needs no GPU. A row is written to
results/memory_gpu.json as soon as it is known, and the table to results/memory_gpu.md.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import statistics
import sys
import time
from datetime import date
from pathlib import Path
from typing import Any

import torch

import stepladder as sl

sys.path.insert(0, str(Path(__file__).parent / "zoo"))

from real_sizes import CASES, Case

RESULTS = Path(__file__).parent / "results" / "memory_gpu.json"
PLANS = "bf16;bf16 recompute=blocks;fp32;bf16-master"
OPTIMIZER = "adamw lr=1e-4 clip=1"
STEPS = 3
MIB = 2**20
Row = dict[str, Any]


def measure(case: Case, plan: str) -> Row:
    """Peaks of the second to the fourth step, in bytes above what was allocated before."""
    module = case.module
    run = sl.climb(module, loss=case.loss, optimizer=OPTIMIZER, plan=plan, device="cuda")
    run.step(case.batch).read()
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(STEPS):
        run.step(case.batch).read()
    return {
        "allocated": torch.cuda.max_memory_allocated(),
        "reserved": torch.cuda.max_memory_reserved(),
    }


def measure_all(names: list[str], plans: list[str], path: Path) -> None:
    for name in names:
        for plan in plans:
            began = time.perf_counter()
            torch.manual_seed(0)
            try:
                with torch.device("cuda"):  # weights are drawn there: drawing takes longest
                    case = CASES[name]()
                found = measure(case, plan)
                del case
            except Exception as error:
                found = {"problem": f"{type(error).__name__}: {str(error)[:200]}"}
            gc.collect()
            torch.cuda.empty_cache()
            keep(path, {"module": name, "plan": plan, **found})
            print(f"{name}, {plan}: {found} ({time.perf_counter() - began:.1f} s)", flush=True)


def rehearse_all(path: Path) -> None:
    rows = json.loads(path.read_text())["rows"]
    known, case = "", None
    for row in rows:
        if "allocated" not in row:
            continue
        if row["module"] != known:
            torch.manual_seed(0)
            known, case = row["module"], CASES[row["module"]]()
        assert case is not None
        began = time.perf_counter()
        try:
            found = sl.rehearse(
                case.module, row["plan"], sample=case.batch, loss=case.loss, optimizer=OPTIMIZER
            )
            row |= {
                "rehearsed": found.allocated_bytes, "rehearsed_reserved": found.reserved_bytes,
                "notes": list(found.notes), "seconds": round(time.perf_counter() - began, 1),
            }  # fmt: skip
        except sl.errors.StepladderError as refused:
            row["refused"] = str(refused)
        keep(path, row)
        print(line(row), flush=True)


def line(row: Row) -> str:
    name = f"{row['module']}, {row['plan']}"
    if "rehearsed" not in row:
        return f"{name}: {row.get('refused') or row.get('problem')}"
    return f"{name}: {share(row):+.1%} allocated, {share(row, 'reserved'):+.1%} reserved"


def share(row: Row, what: str = "allocated") -> float:
    """How far the rehearsal is from what was measured."""
    rehearsed = row["rehearsed" if what == "allocated" else "rehearsed_reserved"]
    return float(rehearsed / row[what] - 1)


def keep(path: Path, row: Row) -> None:
    kept = json.loads(path.read_text()) if path.exists() else {}
    same = ("module", "plan")
    rows = [each for each in kept.get("rows", []) if any(each[k] != row[k] for k in same)]
    if torch.cuda.is_available():
        kept |= {
            "date": str(date.today()), "machine": platform.machine(),
            "device": torch.cuda.get_device_name(), "torch": torch.__version__,
        }  # fmt: skip
    path.write_text(json.dumps({**kept, "rows": [*rows, row]}, indent=1) + "\n")


def table(path: Path) -> str:
    kept = json.loads(path.read_text())
    rows = [row for row in kept["rows"] if "rehearsed" in row]
    errors = sorted(abs(share(row)) for row in rows)
    reserved = sorted(abs(share(row, "reserved")) for row in rows)
    low = [row for row in rows if share(row) < -0.01]
    says = (
        f"`python benchmarks/memory_gpu.py --measure` on {kept['device']}, torch {kept['torch']}, "
        f"{kept['date']}; `--rehearse` on a machine without one. {len(rows)} pairs of a module and "
        f"a plan: allocated peak off by {statistics.median(errors):.1%} at the median, "
        f"{sum(error <= 0.04 for error in errors) / len(rows):.0%} within 4 %, {len(low)} more than "
        f"1 % low; reserved off by {statistics.median(reserved):.1%} at the median."
    )
    head = "| module | plan | measured, MiB | rehearsed | | reserved, MiB | rehearsed | |"
    lines = [
        f"| {row['module']} | `{row['plan']}` | {row['allocated'] / MIB:,.0f} | "
        f"{row['rehearsed'] / MIB:,.0f} | {share(row):+.1%} | {row['reserved'] / MIB:,.0f} | "
        f"{row['rehearsed_reserved'] / MIB:,.0f} | {share(row, 'reserved'):+.1%} |"
        for row in rows
    ]
    return "\n".join(["# A rehearsed step's memory", "", says, "", head, "|---" * 8 + "|", *lines])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--rehearse", action="store_true")
    parser.add_argument("--only", default=",".join(CASES))
    parser.add_argument("--plans", default=PLANS)
    parser.add_argument("--results", type=Path, default=RESULTS)
    asked = parser.parse_args()
    if asked.measure:
        measure_all(asked.only.split(","), asked.plans.split(";"), asked.results)
    if asked.rehearse:
        rehearse_all(asked.results)
        asked.results.with_suffix(".md").write_text(table(asked.results) + "\n")


if __name__ == "__main__":
    main()
