"""`stepladder bench matmul`: one product in several ways, and copies between memories."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from stepladder.cli.results.bench_tables.device_tables import (
    busy_note,
    byte_rate,
    flop_rate,
    name_of,
)
from stepladder.cli.results.plot_axes import label_bars
from stepladder.cli.results.plots import figure, store
from stepladder.cli.results.tables import as_json, digits, progress, table
from stepladder.palette import COLOURS

if TYPE_CHECKING:
    from stepladder.bench.device.matmuls import CopyTiming, MatmulTiming

BUDGET_SECONDS = 0.2  # of a row


def bench_matmul(options: argparse.Namespace) -> int:
    """Products in several ways, and copies; 1 where a product is wrong."""
    from stepladder.bench.device.matmuls import measure_copies, measure_matmuls, ways_here
    from stepladder.world import pick_device

    device = pick_device(options.device)
    busy = busy_note(os.getloadavg()[0], os.cpu_count() or 1) if device.type == "cpu" else ""
    found = measure_matmuls(device, BUDGET_SECONDS)
    rows = list(progress(found, "products", len(ways_here(device)) + 1))
    copies = measure_copies(device, BUDGET_SECONDS)
    where = name_of(device)
    if options.plot:
        store(draw_ways(f"One matmul, on {where}", rows), options.plot)
    wrong = any(row.problem for row in rows)
    if options.json:
        as_json({"device": where, "matmuls": [record(row) for row in rows],
                 "copies": [{**asdict(row), "bytes_per_second": row.bytes_per_second}
                            for row in copies]})  # fmt: skip
        return int(wrong)
    columns = columns_of(rows)
    table(f"Products of square matrices on {where}", columns,
          [cells_of(row, columns) for row in rows])  # fmt: skip
    table("Copies", ["from and to", "MiB", "rate", "data sheet"], [copy_cells(c) for c in copies])
    print(conclusion(rows) + busy)
    return int(wrong)


def record(row: MatmulTiming) -> dict[str, Any]:
    held = row.occupancy
    kept = held and {"block": str(held.block), "blocks": held.blocks, "share": held.share,
                     "limited_by": held.limited_by}  # fmt: skip
    return {**asdict(row), "flops_per_second": row.flops_per_second, "occupancy": kept}


def columns_of(rows: Sequence[MatmulTiming]) -> list[str]:
    ours = ["block", "occupancy"] if any(row.occupancy for row in rows) else []
    return ["way", "size", "type", "ms", "rate", "times the first", "of the peak",
            "of the data sheet", *ours, "note"]  # fmt: skip


def cells_of(row: MatmulTiming, columns: Sequence[str]) -> list[object]:
    rate, held = row.flops_per_second, row.occupancy
    cells: dict[str, object] = {
        "way": row.name,
        "size": row.size,
        "type": row.compute,
        "ms": None if row.seconds is None else row.seconds * 1e3,
        "rate": "unknown" if rate is None else flop_rate(rate),
        "times the first": "unknown" if row.times_first is None else digits(row.times_first),
        "of the peak": share_words(row.share_of_peak),
        "of the data sheet": share_words(row.share_of_stated),
        "block": "" if held is None else str(held.block),
        "occupancy": "" if held is None else f"{held.share:.1%}, {' and '.join(held.limited_by)}",
        "note": row.problem,
    }
    return [cells[column] for column in columns]


def share_words(share: float | None) -> str:
    """Three digits, however small: the first way is at a ten thousandth of the peak."""
    return "unknown" if share is None else f"{digits(100 * share)}%"


def copy_cells(row: CopyTiming) -> list[object]:
    stated = "unknown" if row.stated is None else byte_rate(row.stated)
    return [row.name, digits(row.bytes / 2**20), byte_rate(row.bytes_per_second), stated]


def conclusion(rows: Sequence[MatmulTiming]) -> str:
    """How far apart the ways are on the same matrices."""
    timed = [row for row in rows[:-1] if row.times_first]
    if not timed:
        return "No product was right, so none was timed."
    first, last = timed[0], timed[-1]
    return (
        f"At {first.size} x {first.size}, {last.name} is {digits(last.times_first or 1.0)} times "
        f"as fast as {first.name}: {share_words(last.share_of_peak)} of the peak against "
        f"{share_words(first.share_of_peak)}."
    )


def draw_ways(title: str, rows: Sequence[MatmulTiming]) -> Any:
    """A bar a way, on a logarithmic axis: ways differ by powers of ten."""
    drawn, axes = figure(7.0, 4.0)
    timed = [row for row in rows if row.flops_per_second]
    rates = [(row.flops_per_second or 0.0) / 1e9 for row in timed]
    bars = axes.bar(range(len(timed)), rates, color=COLOURS[0])
    label_bars(axes, bars, [digits(rate) for rate in rates], 8)
    names = [f"{row.name}\n{row.size}, {row.compute}" for row in timed]
    axes.set_xticks(range(len(timed)), names, fontsize=8)
    axes.set_yscale("log")
    axes.margins(y=0.15)
    axes.set(ylabel="GFLOP/s", title=title)
    axes.grid(axis="x", visible=False)
    return drawn
