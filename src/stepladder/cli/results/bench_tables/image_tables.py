"""The table of `stepladder bench devices`: one net on CPU, GPU, and GPU with autocast."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from stepladder.cli.results.plots import plot_bars
from stepladder.cli.results.tables import as_json, percent, progress, table

if TYPE_CHECKING:
    from stepladder.bench.device.image_training import DeviceRow

MIB = 2**20
COLUMNS = ("device", "seconds", "images/s", "speed-up", "peak MiB", "test accuracy", "last loss",
           "of peak FLOP/s", "note")  # fmt: skip


def bench_devices(options: argparse.Namespace) -> int:
    """Time, memory and accuracy of one training on every device; 1 where no row could be run."""
    import torch

    from stepladder.bench.device.image_training import NO_GPU, ROWS, image_task, measure_devices

    asked = {"batch": options.batch, "epochs": options.epochs, "width": options.width,
             "words": options.plan, "optimizer": options.optimizer}  # fmt: skip
    task = image_task(options.data, **{name: value for name, value in asked.items() if value})
    gpu = torch.cuda.is_available() and options.device != "cpu"
    rows = list(progress(measure_devices(task, gpu=gpu), "rows", len(ROWS)))
    if options.plot:
        plot_devices(options.plot, rows)
    if options.json:
        where = torch.cuda.get_device_name() if gpu else NO_GPU
        as_json({"images": task.name, "batch": task.batch, "epochs": task.epochs,
                 "width": task.width, "gpu": where, "threads": torch.get_num_threads(),
                 "rows": [asdict(row) for row in rows]})  # fmt: skip
    else:
        size = f"batch {task.batch}, {task.epochs} epochs, width {task.width}"
        table(f"Devices: {task.name}, {size}", list(COLUMNS), cells(rows))
    return 0 if any(row.seconds for row in rows) else 1


def cells(rows: Sequence[DeviceRow]) -> list[list[Any]]:
    """The rows as they are shown; speed-ups are over the first that ran."""
    first = next((row.seconds for row in rows if row.seconds), None)
    return [cells_of(row, first) for row in rows]


def cells_of(row: DeviceRow, first: float | None) -> list[Any]:
    if not row.seconds or not first:
        return [row.name, *[""] * (len(COLUMNS) - 2), row.problem]
    return [
        row.name,
        row.seconds,
        row.images_per_second,
        first / row.seconds,
        (row.peak_bytes or 0) / MIB,
        f"{row.accuracy or 0.0:.1%}",
        row.loss,
        percent(row.mfu),
        row.problem,
    ]


def plot_devices(path: str, rows: Sequence[DeviceRow]) -> None:
    """The rows that ran."""
    ran = [row for row in rows if row.seconds]
    panels: dict[str, Sequence[float | None]] = {
        "images a second": [row.images_per_second for row in ran],
        "peak MiB": [(row.peak_bytes or 0) / MIB for row in ran],
        "test accuracy %": [100 * (row.accuracy or 0.0) for row in ran],
    }
    plot_bars(path, [row.name for row in ran], panels, "device")
