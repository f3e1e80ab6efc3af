"""Measure collectives, the ring and DP against DDP here, and write the figures of the page on them.

Run: python benchmarks/collectives.py            measures, writes the result, refreshes the page
     python benchmarks/collectives.py --page     refreshes the page from the kept result
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any

import torch

from stepladder.bench import (
    DataParallelWorkload,
    all_collectives,
    fit_line,
    fit_link,
    measure_data_parallel,
)
from stepladder.bench.collectives import measure_collective
from stepladder.bench.ring_all_reduce import measure_ring
from stepladder.launch import Ranks
from stepladder.plan import Layout

HERE = Path(__file__).parent
RESULT = HERE / "results" / "collectives_cpu.json"
PAGE = HERE.parent / "docs" / "communication.md"
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"
SIZES = [2**power for power in range(10, 27, 2)]
RING_SIZES = [2**10, 2**16, 2**20, 2**20 + 12, 2**24, 2**26]


def measure() -> dict[str, Any]:
    load_before = os.getloadavg()[0]
    with Ranks(4) as pool:
        layout = Layout(replicate=2)
        with Ranks(2) as pair:
            found = [
                measure_collective(pair, use, layout, SIZES, device="cpu", steps=20)
                for use in all_collectives()
            ]
            two = list(measure_ring(pair, RING_SIZES, device="cpu", steps=20))
            trial = DataParallelWorkload("gpt-tiny", 8, 128, 2, "cpu", 20)
            ways = list(measure_data_parallel(pair, trial))
        four = list(measure_ring(pool, RING_SIZES, device="cpu", steps=20))
    rows = [row for some in found for row in some]
    return {
        "date": date.today().isoformat(),
        "machine": f"CPU, {os.cpu_count()} cores, {platform.machine()}, torch {torch.__version__}",
        "load": [load_before, os.getloadavg()[0]],
        "collectives": [
            {**asdict(row), "bus_bytes_per_second": row.bus_bytes_per_second} for row in rows
        ],
        "lines": {some[0].collective: plain(fit_line(some)) for some in found},
        "link": plain(fit_link(rows)),
        "ring": [asdict(row) for row in (*two, *four)],
        "data_parallel": [asdict(row) for row in ways],
    }


def plain(line: Any) -> dict[str, float] | None:
    return None if line is None else asdict(line)


def figures(result: dict[str, Any]) -> str:
    """The page's tables, as text."""
    before, after = result["load"]
    parts = [
        f"Measured on {result['date']}: {result['machine']}, load {before:.1f} before and "
        f"{after:.1f} after (the ranks' own work included). gloo.",
        markdown(
            ["collective, 2 ranks", "1 KiB, µs", "1 MiB, µs", "64 MiB, µs", "bus GB/s at 64 MiB",
             "latency a hop, µs", "rate, GB/s", "typical error"],
            [collective_cells(name, result) for name in result["lines"]],
        ),
        markdown(
            ["ring", "bytes", "ring, ms", "backend, ms", "sent by a rank", "by formula",
             "on the wire", "backend's wire"],
            [[f"{row['ranks']} ranks", row["bytes"], round(row["ring_ms"], 2),
              round(row["backend_ms"], 2), row["sent_bytes"], row["formula_bytes"],
              row["wire_bytes"], row["backend_wire_bytes"]] for row in result["ring"]],
        ),
        markdown(
            ["gpt-tiny, batch 8", "processes", "ms a step", "samples/s"],
            [[row["name"], row["processes"], round(row["step_ms"], 1),
              round(row["samples_per_second"], 1)] for row in result["data_parallel"]],
        ),
    ]  # fmt: skip
    return "\n\n".join(parts)


def collective_cells(name: str, result: dict[str, Any]) -> list[Any]:
    rows = {row["bytes"]: row for row in result["collectives"] if row["collective"] == name}
    line = result["lines"][name]
    times = [round(rows[size]["seconds"] * 1e6) for size in (2**10, 2**20, 2**26)]
    rate = round(rows[2**26]["bus_bytes_per_second"] / 1e9, 2)
    if line is None:
        return [name, *times, rate, "unknown", "unknown", "unknown"]
    fitted = [round(line["latency_seconds"] * 1e6), round(line["bytes_per_second"] / 1e9, 2)]
    return [name, *times, rate, *fitted, f"{line['error']:.0%}"]


def markdown(columns: list[str], rows: list[list[Any]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def with_figures(page: str, result: dict[str, Any]) -> str:
    return f"{words(page)}\n{BEGIN}\n{figures(result)}\n{END}\n"


def words(page: str) -> str:
    """The page without its figures, which stand at its end."""
    return page.partition(f"\n{BEGIN}")[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--page", action="store_true", help="from the kept result")
    if not parser.parse_args().page:
        RESULT.write_text(json.dumps(measure(), indent=1) + "\n")
    result = json.loads(RESULT.read_text())
    PAGE.write_text(with_figures(PAGE.read_text(), result))
    print(figures(result))


if __name__ == "__main__":
    main()
