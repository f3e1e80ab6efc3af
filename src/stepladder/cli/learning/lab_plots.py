"""The picture of a lab's numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepladder.cli.results.plots import figure, place_legend, store

if TYPE_CHECKING:
    from stepladder.labs.lab import Lab, Picture


def draw(lab: Lab, rows: Sequence[Mapping[str, Any]], path: Path | None) -> Path:
    """The lab's numbers as lines, or as bars where what is compared has names."""
    spec = lab.picture
    assert spec is not None
    if spec.shade:
        return draw_cells(lab, spec, rows, path)
    drawn, panels = figure(max(4.0 * len(spec.y), 6.0), 4.0, panels=len(spec.y))
    for axes, column in zip([panels] if len(spec.y) == 1 else panels, spec.y):
        for name in dict.fromkeys(row.get(spec.by) for row in rows):
            mine = [row for row in rows if row.get(spec.by) == name and column in row]
            xs, ys = [row[spec.x] for row in mine], [row[column] for row in mine]
            if any(isinstance(x, str) for x in xs):
                axes.bar(xs, ys, label=name)
                axes.tick_params(axis="x", rotation=20)
            else:
                axes.plot(xs, ys, "o-", markersize=3, label=name)
        axes.set(xlabel=spec.x.replace("_", " "), ylabel=column.replace("_", " "))
        if "x" in spec.log:
            axes.set_xscale("log", base=2)
        if "y" in spec.log:
            axes.set_yscale("log")
        if spec.by:
            place_legend(axes)
    drawn.suptitle(lab.title)
    return store(drawn, path or Path(f"{lab.stem}.png"))


def draw_cells(
    lab: Lab, spec: Picture, rows: Sequence[Mapping[str, Any]], path: Path | None
) -> Path:
    """The lab's numbers written in cells, a panel for each moment."""
    moments = list(dict.fromkeys(row[spec.by] for row in rows))
    most = max(row[spec.shade] for row in rows)
    drawn, panels = figure(1.8 * len(moments) + 0.6, 2.6, panels=len(moments))
    for axes, moment in zip([panels] if len(moments) == 1 else panels, moments):
        mine = [row for row in rows if row[spec.by] == moment]
        wide, high = (1 + max(row[column] for row in mine) for column in (spec.x, spec.y[0]))
        cells = [[0] * wide for _ in range(high)]
        for row in mine:
            x, y, value = row[spec.x], row[spec.y[0]], row[spec.shade]
            cells[y][x] = value
            colour = "white" if value > 0.7 * most else "black"
            axes.text(x, y, f"{value:g}", ha="center", va="center", color=colour)
        axes.imshow(cells, cmap="Blues", vmin=0, vmax=1.2 * most)
        axes.set(title=f"{spec.by} {moment}", xticks=range(wide), yticks=range(high))
        axes.set(xlabel=spec.x, ylabel=spec.y[0] if moment == moments[0] else "")
        axes.grid(visible=False)
    drawn.suptitle(f"{lab.title}: {spec.shade.replace('_', ' ')}")
    return store(drawn, path or Path(f"{lab.stem}.png"))
