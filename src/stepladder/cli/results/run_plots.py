"""The picture of a run's devices: utilisation, power and temperature over the steps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stepladder.record import read_journal

from .plot_axes import count_whole
from .plots import figure, store

PANELS = {
    "utilisation": ("GPU utilisation %", 100.0),
    "power_w": ("power W", None),
    "temperature_c": ("temperature °C", None),
}


def draw_devices(folder: Path) -> Path | None:
    """The picture in the run's folder; none where the journal has no reading of a GPU."""
    return plot_devices(folder / "devices.png", list(read_journal(folder, kind="device")))


def plot_devices(path: str | Path, entries: Sequence[dict[str, Any]]) -> Path | None:
    """A panel for each quantity that was measured; none where nothing was."""
    known = {key: panel for key, panel in PANELS.items() if any(readings(entries, key))}
    if not known:
        return None
    drawn, axes = figure(4.2 * len(known), 3.4, panels=len(known))
    for axis, (key, (title, top)) in zip([axes] if len(known) == 1 else axes, known.items()):
        steps, values = zip(*readings(entries, key))
        axis.plot(steps, values, linewidth=1.2)
        axis.set(xlabel="step", title=title)
        axis.set_ylim(0, top)
        count_whole(axis.xaxis)
    return store(drawn, path)


def readings(entries: Sequence[dict[str, Any]], key: str) -> list[tuple[float, float]]:
    return [
        (entry["step"], entry[key])
        for entry in entries
        if isinstance(entry.get(key), int | float) and isinstance(entry.get("step"), int | float)
    ]
