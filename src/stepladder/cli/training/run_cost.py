"""What a run cost: money and energy for a million tokens, and how busy its devices were."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from stepladder.cli.results.plots import figure, store
from stepladder.hardware import Device, recognise
from stepladder.record import Report, read_journal
from stepladder.record.cost import dollars, kilowatt_hours
from stepladder.world import World, limit_bytes

MILLION = 1e6
PANELS = {
    "utilisation": ("GPU utilisation %", 100.0),
    "power_w": ("power W", None),
    "temperature_c": ("temperature °C", None),
}


def cost_figures(
    world: World, tokens_per_second: float | None, watts: Sequence[float] = ()
) -> dict[str, Any]:
    """For a million tokens: dollars and kilowatt-hours; None where the device tells too little.

    Args:
        watts: measured of one device; without them its limit stands in, and is called so.
    """
    device = device_of(world)
    power = statistics.fmean(watts) if watts else device and device.power_watts
    source = "measured power" if watts else "at the board's limit"
    price = device and device.dollars_per_hour
    if not tokens_per_second:
        return {}
    seconds, ranks = MILLION / tokens_per_second, world.place.num_ranks
    return {
        "dollars per million tokens": dollars(seconds, ranks, price) if price else None,
        f"kWh per million tokens ({source})": kilowatt_hours(seconds, ranks, power)
        if power
        else None,
    }


def run_costs(world: World, folder: Path, reports: Sequence[Report]) -> dict[str, Any]:
    """The same of a run, by its steady reports and the power its journal holds."""
    steady = [report.tokens_per_second for report in reports[1:] or reports]
    # Only a GPU's journal holds readings, and a journal may be long.
    watts = measured_watts(folder) if world.device.type == "cuda" and world.first else ()
    return cost_figures(world, statistics.median(steady) if steady else None, watts)


def draw_devices(world: World, folder: Path) -> Path | None:
    """The picture of a finished run's devices, in its folder."""
    if world.device.type != "cuda":
        return None
    return plot_devices(folder / "devices.png", list(read_journal(folder, kind="device")))


def device_of(world: World) -> Device | None:
    if world.device.type != "cuda":
        return None
    return recognise(torch.cuda.get_device_name(world.device), limit_bytes(world.device))


def measured_watts(folder: Path) -> list[float]:
    """Readings of power in a run's journal."""
    found = (entry.get("power_w") for entry in read_journal(folder, kind="device"))
    return [reading for reading in found if isinstance(reading, int | float)]


def plot_devices(path: str | Path, entries: Sequence[dict[str, Any]]) -> Path | None:
    """Utilisation, power and temperature over the steps; none where nothing was measured."""
    known = {key: panel for key, panel in PANELS.items() if any(readings(entries, key))}
    if not known:
        return None
    drawn, axes = figure(4.2 * len(known), 3.4, panels=len(known))
    for axis, (key, (title, top)) in zip([axes] if len(known) == 1 else axes, known.items()):
        steps, values = zip(*readings(entries, key))
        axis.plot(steps, values, linewidth=1.2)
        axis.set(xlabel="step", title=title)
        axis.set_ylim(0, top)
    return store(drawn, path)


def readings(entries: Sequence[dict[str, Any]], key: str) -> list[tuple[float, float]]:
    return [
        (entry["step"], entry[key])
        for entry in entries
        if isinstance(entry.get(key), int | float) and isinstance(entry.get("step"), int | float)
    ]
