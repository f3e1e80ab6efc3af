"""The tables of `stepladder bench` about this device: its roofline."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from stepladder.cli.results.plot_axes import mark_log
from stepladder.cli.results.plots import figure, place_legend, store
from stepladder.cli.results.tables import as_json, digits, percent, progress, table
from stepladder.palette import TEXT, series_colours

if TYPE_CHECKING:
    import torch

    from stepladder.bench.device.roofline import RooflinePoint, Roofs

MARKERS = "osD^vP*X"
LINK = {"cuda": "pinned host memory to the device", "cpu": "memory to memory, one copy"}
BUSY = 0.5  # of the cores, before anything is measured
IN_CACHE = 1.05  # of the roof: more than two timings of one thing differ by


def bench_roofline(options: argparse.Namespace) -> int:
    """Measured roofs of this device and operations under them."""
    from stepladder.bench.device.roofline import operations_here, place_operations, time_operations
    from stepladder.world import pick_device

    device = pick_device(options.device)
    busy = busy_note(os.getloadavg()[0], os.cpu_count() or 1) if device.type == "cpu" else ""
    count = len(operations_here(device))
    timings = list(progress(time_operations(device), "operations", count))
    roofs, points = place_operations(device, timings)
    where = name_of(device)
    if options.plot:
        store(draw_roofline(f"Roofline of {where}, measured", roofs, points), options.plot)
    if options.json:
        ridges = {compute: roofs.ridge(compute) for compute in roofs.peaks}
        as_json({"device": where, "roofs": {**asdict(roofs), "ridges": ridges},
                 "operations": [record(point) for point in points]})  # fmt: skip
        return 0
    columns = ["roof", "measured", "data sheet", "share", "ridge point, FLOP/byte"]
    table(f"Roofs of {where}", columns, roof_rows(roofs, device.type))
    table("Operations under them",
          ["operation", "shape", "type", "FLOP/byte", "GFLOP/s", "roof GFLOP/s", "share",
           "bound by", "note"], [cells_of(point) for point in points])  # fmt: skip
    print(conclusion(roofs, points) + busy)
    return 0


def busy_note(load: float, cores: int) -> str:
    """What to think of figures that other processes took their share of."""
    if load < BUSY * cores:
        return ""
    return (
        f"\nOther work kept this machine busy (load {load:.1f} on {cores} cores at the start): "
        "the figures are too low. Run it again when idle."
    )


def name_of(device: torch.device) -> str:
    import torch

    from stepladder.bench import device_name
    from stepladder.world import detect_machine

    if device.type == "cuda":
        return device_name(str(device))
    return f"{detect_machine().cpu}, {torch.get_num_threads()} threads"


def record(point: RooflinePoint) -> dict[str, Any]:
    return {**asdict(point), "intensity": point.intensity, "achieved": point.achieved,
            "share": point.share}  # fmt: skip


def roof_rows(roofs: Roofs, kind: str) -> list[list[object]]:
    rows: list[list[object]] = []
    for compute, peak in roofs.peaks.items():
        promised = stated(peak, roofs.stated_peaks[compute], flop_rate)
        ridge = digits(roofs.ridge(compute))
        rows.append([f"matmul {compute}", flop_rate(peak), *promised, ridge])
    rate, known = roofs.bytes_per_second, roofs.stated_bytes_per_second
    rows.append(["memory", byte_rate(rate), *stated(rate, known, byte_rate), ""])
    return [*rows, [LINK[kind], byte_rate(roofs.host_bytes_per_second), "", "", ""]]


def flop_rate(rate: float) -> str:
    return f"{digits(rate / 1e12)} TFLOP/s" if rate >= 1e12 else f"{digits(rate / 1e9)} GFLOP/s"


def byte_rate(rate: float) -> str:
    return f"{digits(rate / 1e9)} GB/s"


def stated(measured: float, promised: float | None, write: Any) -> tuple[str, str]:
    """What the device table says, and the share of it that was reached."""
    if promised is None:
        return "unknown", "unknown"
    return write(promised), percent(measured / promised)


def cells_of(point: RooflinePoint) -> list[object]:
    rates = [None if rate is None else rate / 1e9 for rate in (point.achieved, point.roof)]
    in_cache = "operands stay in a cache" if (point.share or 0.0) > IN_CACHE else ""
    return [point.operation, point.shape, point.compute, point.intensity, *rates,
            percent(point.share), point.bound, point.problem or in_cache]  # fmt: skip


def conclusion(roofs: Roofs, points: Sequence[RooflinePoint]) -> str:
    """What memory bounds here, and the operation that is furthest from its roof."""
    timed = [point for point in points if point.share]
    bound = dict.fromkeys(point.operation for point in timed if point.bound == "memory")
    ridges = [f"{digits(roofs.ridge(compute))} ({compute})" for compute in roofs.peaks]
    lowest = min(timed, key=lambda point: point.share or 0.0)
    return (
        f"Memory, not arithmetic, bounds what does fewer FLOPs a byte than the ridge point, "
        f"{', '.join(ridges)}: {', '.join(bound) or 'nothing here'}.\n"
        f"Furthest from its roof: {lowest.operation} {lowest.shape} in {lowest.compute}, at "
        f"{percent(lowest.share)}."
    )


def draw_roofline(title: str, roofs: Roofs, points: Sequence[RooflinePoint]) -> Any:
    """Both axes logarithmic: a roof a type, a marker an operation, in the colour of its type."""
    drawn, axes = figure(9.0, 5.0)
    timed = [point for point in points if point.achieved]
    ends = [point.intensity for point in timed] + [roofs.ridge(each) for each in roofs.peaks]
    low, high = min(ends) / 2, max(ends) * 2
    colours = dict(zip(roofs.peaks, series_colours(len(roofs.peaks))))
    for compute, peak in roofs.peaks.items():
        across = [low, roofs.ridge(compute), high]
        roof = [roofs.roof(compute, each) / 1e9 for each in across]
        label = f"{compute} peak {flop_rate(peak)}"
        axes.loglog(across, roof, color=colours[compute], label=label)
    for name, marker in zip(dict.fromkeys(point.operation for point in timed), MARKERS):
        axes.plot([], [], marker, markersize=6, color=TEXT, label=name)
        for point in (one for one in timed if one.operation == name):
            rate = (point.achieved or 0.0) / 1e9
            axes.loglog(point.intensity, rate, marker, markersize=6, color=colours[point.compute])
    axes.set(xlabel="arithmetic intensity, FLOP/byte", ylabel="GFLOP/s", title=title)
    mark_log(axes.xaxis)
    mark_log(axes.yaxis)
    memory = f"memory {byte_rate(roofs.bytes_per_second)}"
    place_legend(axes, title=memory, title_fontsize=8)
    return drawn
