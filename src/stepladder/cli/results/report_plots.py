"""A run's curves as pictures: each a PNG file, and the same as SVG for the page.

The SVG's black becomes the page's own text colour, so that it can be read by day and by night.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from stepladder.palette import (
    COLLECTIVES,
    COLOURS,
    HUES,
    LIMIT,
    OWNERS,
    STROKES,
    hue_on_circle,
    in_css,
    owner_colour,
    tone,
)

from .plot_axes import count_whole, mark_thousands
from .plots import figure, place_legend, store
from .report_curves import (
    FROM_ZERO,
    GIB,
    MIB,
    PICTURES,
    Curve,
    Window,
    curve_is_known,
    highest,
    smaller,
    without_context,
)

if TYPE_CHECKING:
    from stepladder.dashboard import JournalIndex

POINTS = 800
FAR = 2**62
LOGGED = "logged "  # before the name of values that a training loop logged


@dataclass(frozen=True)
class Plot:
    title: str
    path: Path
    svg: str


def draw_plots(index: JournalIndex, folder: Path) -> list[Plot]:
    """Every picture there are numbers for."""
    from stepladder.dashboard.run_facts import unit as unit_of

    windows = index.windows(0, FAR, POINTS)
    made = []
    for name, (title, unit, curves) in PICTURES.items():
        known = [curve for curve in curves if curve_is_known(windows[curve.kind], curve)]
        if known:
            shown, scale = smaller(unit.format(unit=unit_of(index)), windows, known)
            drawn = lines(windows, known, shown, scale=scale, from_zero=name in FROM_ZERO)
            made.append(keep(folder / f"{name}.png", title, drawn))
    columns = windows["memory"]["columns"]
    owners = {name: columns[name] for name in sorted(columns, key=owner_place) if name != "peak"}
    if owners:
        limit = index.latest.get("memory", {}).get("limit_bytes")
        end = max([*windows["step"]["steps"][-1:], *windows["memory"]["steps"][-1:]])
        owners, title = without_context(owners)
        drawn = stacked([*windows["memory"]["steps"], end], owners, limit)
        made.append(keep(folder / "memory-by-owner.png", title, drawn))
    collectives = windows["collectives"]["columns"]
    if collectives:
        named = [Curve("collectives", name, name.replace("_", " ")) for name in collectives]
        shown, scale = smaller("s a step", windows, named)
        drawn = lines(windows, named, shown, scale=scale, from_zero=True)
        made.append(keep(folder / "collectives.png", "Collectives", drawn))
    for kind in windows:
        if kind.startswith(LOGGED) and windows[kind]["columns"]:
            name = kind.removeprefix(LOGGED)
            drawn = lines(windows, [Curve(kind, "value", name)], name)
            made.append(keep(folder / f"logged-{file_name(name)}.png", name, drawn))
    return made


def owner_place(owner: str) -> int:
    """From what stays to what passes."""
    return [*OWNERS, owner].index(owner)


def file_name(name: str) -> str:
    """A name that a training loop chose, as part of the name of a file in any folder."""
    return quote(name, safe="").replace(".", "%2E")


Draw = Callable[[Any], None]


def lines(
    windows: dict[str, Window],
    curves: Sequence[Curve],
    unit: str,
    *,
    scale: float = 1.0,
    from_zero: bool = False,
) -> Draw:
    def draw(axes: Any) -> None:
        for index, curve in enumerate(curves):
            window = windows[curve.kind]
            column, steps = window["columns"][curve.column], window["steps"]
            colour, stroke = look_of(curve, index)
            low, mean, high = (
                scaled(column.get(part, column["mean"]), scale * curve.scale)
                for part in ("low", "mean", "high")
            )
            if window["rows_per_point"] > 1:
                axes.fill_between(steps, low, high, color=colour, alpha=0.18, linewidth=0)
            axes.plot(
                steps, mean, linestyle=stroke, color=colour, label=curve.label, linewidth=1.4,
                marker="o" if len(steps) < 30 else None, markersize=3,
            )  # fmt: skip
        axes.set(xlabel="step", ylabel=unit)
        count_whole(axes.xaxis)
        most = scale * highest(windows, curves)
        mark_thousands(axes.yaxis, most)
        if from_zero:
            axes.set_ylim(0, 1.08 * most or 1.0)
        if len(curves) > 1 or curves[0].kind == "collectives":
            place_legend(axes)

    return draw


def look_of(curve: Curve, place: int) -> tuple[str, str]:
    """Colour and stroke: a collective's own, else the run's, and tones of it."""
    if curve.kind == "collectives":
        known = COLLECTIVES.get(curve.column)
        return HUES[known].light if known else hue_on_circle(place / 7), "-"
    return tone(COLOURS[0], place), STROKES[place % len(STROKES)]


def stacked(steps: Sequence[int], owners: dict[str, Any], limit: Any) -> Draw:
    """Each owner on the others; a peak lasts until another is recorded, or to the last step."""

    def draw(axes: Any) -> None:
        peaks = [[*column["mean"], column["mean"][-1]] for column in owners.values()]
        most = max(sum(value or 0 for value in each) for each in zip(*peaks))
        unit, name = (GIB, "GiB") if most >= GIB else (MIB, "MiB")
        heights = [[(value or 0) / unit for value in each] for each in peaks]
        colours = [owner_colour(owner) for owner in owners]
        names = [owner.replace("_", " ") for owner in owners]
        axes.stackplot(steps, heights, labels=names, colors=colours)
        if isinstance(limit, int | float) and limit < 2.5 * most:
            axes.axhline(limit / unit, color=LIMIT, linestyle="--", linewidth=1, label="limit")
        axes.set(xlabel="step", ylabel=name)
        count_whole(axes.xaxis)
        axes.set_ylim(bottom=0)
        place_legend(axes, reverse=True)

    return draw


def scaled(values: Sequence[float | None], scale: float) -> list[float]:
    return [float("nan") if value is None else value * scale for value in values]


def keep(path: Path, title: str, draw: Draw) -> Plot:
    """Draw once; keep the picture as a file and its lines for the page."""
    import matplotlib

    drawn, axes = figure(5.2, 3.0)  # its letters are read on a phone too
    draw(axes)
    text = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": path.stem}):
        drawn.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    return Plot(title, store(drawn, path), for_page(text.getvalue()))


def for_page(svg: str) -> str:
    """Without what only a file of its own needs, and in the page's own colours."""
    bare = svg[svg.index("<svg") :]
    bare = re.sub(r"<metadata>.*?</metadata>", "", bare, flags=re.DOTALL)
    return in_css(bare).replace(LIMIT, "var(--bad)").replace("#000000", "currentColor")
