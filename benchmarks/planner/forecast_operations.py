"""The measured rows of benchmarks/time_gpu.py beside forecasts by operations; no GPU is needed.

A module's operations are rehearsed once for each precision and way of recomputing, and kept in a
folder, so that prices can be tried again in a second.
"""

from __future__ import annotations

import json
import pickle
import statistics
import sys
from pathlib import Path
from typing import Any

import torch

from held_out_operations import held_out
from stepladder.calibrate.fit_rates import fit
from stepladder.hardware import find_device
from stepladder.plan import Plan
from stepladder.record import Calibration
from stepladder.rehearse.rehearse_step import settled_for
from stepladder.rehearse.time.operations import ASKING, Operation
from stepladder.rehearse.time.prices import prices_of
from stepladder.rehearse.time.step_time import as_planned, priced, step_operations

sys.path.insert(0, str(Path(__file__).parents[1] / "zoo"))
MS = 1e3
Row = dict[str, Any]


def forecast_rows(
    measured: Path, calibration: Path, out: Path, keep: Path, only: list[str] | None = None
) -> None:
    """Write the table beside the measured rows."""
    told = json.loads(measured.read_text())
    known = refitted(Calibration.load(calibration))
    device = told["device"].removeprefix("NVIDIA ")
    rows, steps = list[Row](), dict[tuple[str, str], list[Operation]]()
    for row in told["rows"]:
        if "step_seconds" not in row or (only and row["module"] not in only):
            continue
        try:
            step = operations_of(row["module"], row["plan"], told["optimizer"], keep)
        except Exception as failed:
            print(f"{row['module']} {row['plan']}: {type(failed).__name__} {str(failed)[:200]}")
            continue
        steps[row["module"], row["plan"]] = step
        rows.append({**row, **forecast_row(row, step, device, known)})

    def seconds(row: Row) -> float:
        plan = Plan.parse(row["plan"])
        step = as_planned(steps[row["module"], row["plan"]], plan)
        return priced(step, prices_of(find_device(device), plan, known))[0].step_seconds

    for row, found in zip(rows, held_out(rows, seconds)):
        row["held out"] = found
    out.write_text(table(told, rows))
    print(out.read_text())


def refitted(known: Calibration) -> Calibration:
    """The rates as they would be fitted today to what was timed then."""
    return fit(known.device, list(known.timings), known.context_bytes)


def operations_of(name: str, words: str, optimizer: str, keep: Path) -> list[Operation]:
    """Of a step, eager: a compiled one is made of it."""
    plain = words.replace(" compile=on", "")
    file = keep / f"{name}-{plain.replace(' ', '_')}.pickle"
    if file.exists():
        return pickle.loads(file.read_bytes())
    from real_sizes import CASES

    torch.manual_seed(0)
    case = CASES[name]()
    settled = settled_for(plain, optimizer, 1, "cuda")
    step, _ = step_operations(
        case.module, settled, sample=case.batch, loss=case.loss, device="cuda"
    )
    keep.mkdir(parents=True, exist_ok=True)
    file.write_bytes(pickle.dumps(step))
    return step


def forecast_row(row: Row, step: list[Operation], device: str, known: Calibration) -> Row:
    plan = Plan.parse(row["plan"])
    step = as_planned(step, plan)
    found: Row = {"kernels_said": sum(one.kind != ASKING for one in step)}
    for word, calibration in (("calibrated", known), ("table", None)):
        time, line = priced(step, prices_of(find_device(device), plan, calibration))
        found[word] = time.step_seconds
        found[f"{word}_host"] = line.host_seconds
    return found


def table(told: Row, rows: list[Row]) -> str:
    lines = [
        "# Step time by operations, forecast against measured",
        "",
        f"{told['date']}, {told['device']}, torch {told['torch']}, host {told['host']}, "
        f"{told['cores']} cores; operations rehearsed on {torch.__version__} without a GPU. "
        "`python benchmarks/time_gpu.py --forecast`.",
        "",
        *(f"- {summary(rows, *each)}" for each in GROUPS),
        "",
        *NOTES,
        "",
        "| module | plan | measured ms | held out | error | calibrated | error | by the table "
        "| error | host ms, said | measured |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        real = row["step_seconds"]
        cells = [f"{row[w] * MS:.1f} | {row[w] / real - 1:+.1%}" for w in WORDS]
        lines.append(
            f"| {row['module']} | {row['plan']} | {real * MS:.1f} | {' | '.join(cells)} "
            f"| {row['calibrated_host'] * MS:.1f} | {host_seconds(row) * MS:.1f} |"
        )
    return "\n".join(lines) + "\n"


def host_seconds(row: Row) -> float:
    """What the host took for a step: of one row, or of an idle device where that was not tried."""
    return float(row.get("one_row_asked", row["alone_seconds"]))


NOTES = (
    "Held out: the constants of `benchmarks/planner/held_out_operations.py` chosen anew without "
    "every row of that module, from not having them at all; calibrated: as committed. Not held "
    "out: what one step of a recurrent cell costs, which one module tells; that a compiler pads "
    "products; kinds of kernels that were told apart after profiles of these modules were read.",
    "",
    "Timed one after another, alone on the device and on idle cores. Host: of steps of a single "
    "row, or, where a plan compiles, of a step asked of an idle device. Hosts of two processes "
    "of one machine differed by up to a half (dit and vit_b_16 beside bert and gpt2, compiled).",
    "",
    "The compiler broke opt into eight graphs and ran the rest eagerly, with attention that is not "
    "causal; the forecast knows of neither.",
)
WORDS = ("held out", "calibrated", "table")
GROUPS = tuple((word, kind) for word in WORDS for kind in ("eager", "compiled"))


def summary(rows: list[Row], word: str, kind: str) -> str:
    mine = [row for row in rows if ("compile" in row["plan"]) == (kind == "compiled")]
    off = sorted(abs(row[word] / row["step_seconds"] - 1) for row in mine)
    if not off:
        return f"{word}, {kind}: none"
    tenth = off[min(int(0.9 * len(off)), len(off) - 1)]
    return (
        f"{word}, {kind}: {len(off)} rows, median error {statistics.median(off):.1%}, nine in ten "
        f"within {tenth:.1%}, largest {off[-1]:.1%}"
    )
