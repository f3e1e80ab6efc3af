"""Peak memory of a GPU, measured, and forecast by rehearsal and by formula, for others' modules.

    python benchmarks/memory_gpu.py --measure --rehearse --out FILE.json [--seconds N]
    python benchmarks/memory_gpu.py --rehearse --from FILE.json [--only NAME,NAME]

Measuring needs a GPU: each module trains four steps under each plan in a process of its own,
several beside each other as far as the device's memory goes (statistics are per process). Each row
is kept as soon as it is known, and what the seconds leave out is listed. Rehearsing needs none:
beside a measurement it takes cores that are idle; alone it rehearses the rows that were measured
and writes the table beside the results. What single kernels took is kept in FILE.scratch.json.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "memory"))

from error_table import table_of  # noqa: E402
from side_by_side import Lane, rows_in, run_side_by_side  # noqa: E402
from zoo_cases import NAMES, NAMES_COMPILED, SUFFIX, gib_of, job_of, load_libraries  # noqa: E402

RESULTS = HERE / "results" / "memory_gpu.json"
ROOM_GIB, AT_ONCE, REHEARSED_AT_ONCE = 122, 9, 2
DETAILS = ("blocks", "around", "scratch", "seconds")
EVERY = (*NAMES, *(name + SUFFIX for name in NAMES_COMPILED))


def main() -> None:
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument("--measure", action="store_true")
    reader.add_argument("--rehearse", action="store_true")
    reader.add_argument("--from", dest="measured", type=Path, default=RESULTS)
    reader.add_argument("--only", default=",".join(EVERY))
    reader.add_argument("--seconds", type=float, default=220)
    reader.add_argument("--at-once", type=int, default=AT_ONCE)
    reader.add_argument("--rehearse-at-once", type=int, default=REHEARSED_AT_ONCE)
    reader.add_argument("--out", type=Path, default=RESULTS)
    options = reader.parse_args()
    began = time.monotonic()
    load_libraries()
    left = options.seconds - (time.monotonic() - began) - 5
    jobs, folders = options.only.split(","), [Path(tempfile.mkdtemp()) for _ in range(2)]
    working = []
    if options.measure:
        working.append(measuring(jobs, options.at_once, folders[0], left))
    else:
        kept: dict[str, Any] = json.loads(options.measured.read_text())
        there = {(row["module"], row["plan"]) for row in kept["rows"]}
        jobs = [job for job in jobs if (job_of(job)[0], job_of(job)[1][0]) in there]
    if options.rehearse:
        working.append(rehearsing(jobs, options.rehearse_at_once, folders[1], left))
    undone = dict(run_side_by_side(working))
    if options.measure:
        kept = measured(folders[0], undone["measured"])
    if options.rehearse:
        add_forecasts(kept["rows"], folders[1])
    write(kept, options.out)


def measuring(jobs: list[str], at_once: int, folder: Path, seconds: float) -> Lane:
    from measure_case import measure_job

    sizes = {job: float(gib_of(job)) for job in jobs}
    return Lane("measured", jobs, measure_job, folder, sizes, ROOM_GIB, at_once, seconds)


def rehearsing(jobs: list[str], at_once: int, folder: Path, seconds: float) -> Lane:
    from rehearse_case import rehearse_job

    sizes = dict.fromkeys(jobs, 0.0)
    return Lane("rehearsed", jobs, rehearse_job, folder, sizes, 1.0, at_once, seconds)


def measured(folder: Path, undone: list[str]) -> dict[str, Any]:
    import torch
    import transformers

    return {
        "date": time.strftime("%Y-%m-%d"), "machine": platform.machine(),
        "device": torch.cuda.get_device_name(), "torch": torch.__version__,
        "transformers": transformers.__version__, "rows": rows_in(folder), "undone": undone,
    }  # fmt: skip


def add_forecasts(rows: list[dict[str, Any]], folder: Path) -> None:
    """Put what was rehearsed beside what was measured; what has no partner is left out."""
    forecast = {(row["module"], row["plan"]): row for row in rows_in(folder)}
    for row in rows:
        if found := forecast.get((row["module"], row["plan"])):
            row |= {way: found[way] for way in ("rehearsed", "formula") if way in found}


def write(kept: dict[str, Any], out: Path) -> None:
    """The results, their table, and apart from them what explains them."""
    details = [
        {k: v for k, v in row.items() if k in ("module", "plan", *DETAILS)} for row in kept["rows"]
    ]
    out.with_suffix(".scratch.json").write_text(json.dumps(details, indent=0))
    rows = [{k: v for k, v in row.items() if k not in DETAILS} for row in kept["rows"]]
    out.write_text(json.dumps({**kept, "rows": rows}, indent=0))
    text = table_of(kept)
    out.with_suffix(".md").write_text(text)
    print(text)
    print("left undone:", ", ".join(kept.get("undone", [])) or "nothing")
    for row in kept["rows"]:
        spent = {name: round(took, 1) for name, took in row.get("seconds", {}).items()}
        print(row["module"], row["plan"], row.get("failed", ""), spent)


if __name__ == "__main__":
    main()
