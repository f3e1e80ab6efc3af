"""The picture of several plans: memory by owner beside time by cause, as they are forecast."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import Any

from stepladder.palette import LIMIT, cause_colour, owner_colour
from stepladder.record import Forecast

from .plots import figure, place_legend, store
from .tables import GIB

LETTERS = 38  # of a plan in a line


def plot_forecasts(path: str, forecasts: list[Forecast]) -> None:
    """Memory by owner and time by cause, one bar a plan."""
    store(draw_forecasts(forecasts), path)


def draw_forecasts(forecasts: list[Forecast]) -> Any:
    drawn, (memory, time) = figure(12.0, 1.9 + 0.62 * len(forecasts), 2)
    plans = [textwrap.fill(found.plan, LETTERS) for found in forecasts]
    owners = [{o: s / GIB for o, s in f.memory.by_owner().items()} for f in forecasts]
    stack(memory, plans, owners, owner_colour)
    limit = forecasts[0].memory_limit_bytes
    if limit:
        memory.axvline(limit / GIB, color=LIMIT, linestyle="--", linewidth=1, label="limit")
    memory.set_xlabel("GiB on the fullest rank")
    causes = [f.time.by_cause() if f.time else {} for f in forecasts]
    stack(time, [""] * len(plans), causes, cause_colour)
    time.set_xlabel("seconds of a step")
    for panel in (memory, time):  # above the bars, whose names need the width
        place_legend(panel, fontsize=8, loc="lower left", bbox_to_anchor=(0, 1.01), ncols=4,
                     handlelength=1.4, columnspacing=1)  # fmt: skip
    return drawn


def stack(
    axes: Any, names: list[str], bars: list[dict[str, float]], colour: Callable[[str], str]
) -> None:
    positions = range(len(names))
    left = [0.0] * len(names)
    for part in bars[0]:
        sizes = [each.get(part, 0.0) for each in bars]
        if any(sizes):
            look = {"label": part.replace("_", " "), "color": colour(part), "height": 0.62}
            axes.barh(positions, sizes, left=left, **look)
        left = [start + size for start, size in zip(left, sizes)]
    axes.set_yticks(positions, names, fontsize=8)
    axes.grid(visible=False, axis="y")
    axes.invert_yaxis()
