"""The picture of several plans: memory by owner beside time by cause, as they are forecast."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stepladder.palette import LIMIT, cause_colour, owner_colour
from stepladder.record import Forecast

from .plots import figure, place_legend, store
from .tables import GIB


def plot_forecasts(path: str, forecasts: list[Forecast]) -> None:
    """Memory by owner and time by cause, one bar a plan."""
    drawn, (memory, time) = figure(14.0, 1.5 + 0.6 * len(forecasts), 2)
    plans = [found.plan for found in forecasts]
    owners = [{o: s / GIB for o, s in f.memory.by_owner().items()} for f in forecasts]
    stack(memory, plans, owners, owner_colour)
    limit = forecasts[0].memory_limit_bytes
    if limit:
        memory.axvline(limit / GIB, color=LIMIT, linestyle="--", linewidth=1, label="limit")
        place_legend(memory, fontsize=7)
    memory.set_xlabel("GiB on the fullest rank")
    causes = [f.time.by_cause() if f.time else {} for f in forecasts]
    stack(time, [""] * len(plans), causes, cause_colour)
    time.set_xlabel("seconds of a step")
    store(drawn, path)


def stack(
    axes: Any, names: list[str], bars: list[dict[str, float]], colour: Callable[[str], str]
) -> None:
    positions = range(len(names))
    left = [0.0] * len(names)
    for part in bars[0]:
        sizes = [each.get(part, 0.0) for each in bars]
        if any(sizes):
            axes.barh(positions, sizes, left=left, label=part.replace("_", " "), color=colour(part))
        left = [start + size for start, size in zip(left, sizes)]
    axes.set_yticks(positions, names, fontsize=7)
    axes.invert_yaxis()
    place_legend(axes, fontsize=7)
