"""Peak memory of a GPU, measured, and forecast by rehearsal and by formula, for others' modules.

    python benchmarks/memory_gpu.py --measure --out FILE.json [--seconds N] [--only NAME,NAME]
    python benchmarks/memory_gpu.py --rehearse --from FILE.json [--only NAME,NAME]

The first needs a GPU: each module trains four steps under each plan in a process of its own,
several beside each other as far as the device's memory goes (statistics are per process). Each row
is kept as soon as it is known, and what the seconds leave out is listed. The second needs none: it
rehearses the rows that were measured, and writes the table beside the results.
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
from side_by_side import run_side_by_side  # noqa: E402
from zoo_cases import GIB_AT_MOST, NAMES, USUAL_GIB, load_libraries  # noqa: E402

RESULTS = HERE / "results" / "memory_gpu.json"
ROOM_GIB, AT_ONCE = 128, 6


def main() -> None:
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument("--measure", action="store_true")
    reader.add_argument("--rehearse", action="store_true")
    reader.add_argument("--from", dest="measured", type=Path, default=RESULTS)
    reader.add_argument("--only", default=",".join(NAMES))
    reader.add_argument("--seconds", type=float, default=190)
    reader.add_argument("--at-once", type=int, default=AT_ONCE)
    reader.add_argument("--out", type=Path, default=RESULTS)
    options = reader.parse_args()
    names = options.only.split(",")
    if options.measure:
        measure(names, options)
    if options.rehearse:
        rehearse(names, options)


def measure(names: list[str], options: argparse.Namespace) -> None:
    end = time.monotonic() + options.seconds
    load_libraries()
    from measure_case import measure_module, rows_in

    folder = Path(tempfile.mkdtemp())
    undone = run_side_by_side(
        names, measure_module, folder, sizes={n: GIB_AT_MOST.get(n, USUAL_GIB) for n in names},
        room=ROOM_GIB, at_once=options.at_once, seconds=end - time.monotonic() - 5,
    )  # fmt: skip
    import torch
    import transformers

    kept = {
        "date": time.strftime("%Y-%m-%d"), "machine": platform.machine(),
        "device": torch.cuda.get_device_name(), "torch": torch.__version__,
        "transformers": transformers.__version__,
        "rows": rows_in(folder), "undone": undone,
    }  # fmt: skip
    options.out.write_text(json.dumps(kept, indent=0))
    print(f"{len(kept['rows'])} rows; left undone: {', '.join(undone) or 'nothing'}")
    for row in kept["rows"]:
        print(row["module"], row["plan"], row.get("failed") or [row["allocated"], row["reserved"]])


def rehearse(names: list[str], options: argparse.Namespace) -> None:
    kept: dict[str, Any] = json.loads(options.measured.read_text())
    load_libraries()
    from measure_case import rows_in
    from rehearse_case import rehearse_module

    there = {row["module"] for row in kept["rows"]}
    names, folder = [name for name in names if name in there], Path(tempfile.mkdtemp())
    run_side_by_side(
        names, rehearse_module, folder, sizes=dict.fromkeys(names, 1.0), room=2, at_once=2,
        seconds=options.seconds,
    )  # fmt: skip
    forecast = {(row["module"], row["plan"]): row for row in rows_in(folder)}
    for row in kept["rows"]:
        if found := forecast.get((row["module"], row["plan"])):
            row["rehearsed"], row["formula"] = found["rehearsed"], found["formula"]
        for detail in ("blocks", "around"):
            row.pop(detail, None)
    options.out.write_text(json.dumps(kept, indent=0))
    text = table_of(kept)
    options.out.with_suffix(".md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
