"""Pictures of results, as PNG files. Matplotlib is imported when one is drawn."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stepladder import palette
from stepladder.errors import RecordError

from .plot_axes import count_whole, label_bars, mark_thousands
from .tables import digits


def figure(
    width: float = 7.0,
    height: float = 4.0,
    panels: int = 1,
    widths: Sequence[float] | None = None,
) -> tuple[Any, Any]:
    """A figure in the house's look, drawn without a screen; panels as wide as each other or so."""
    # It tells at length of a home where it can keep nothing, and draws all the same.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    look: Any = {
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,  # no line of the grid crosses a bar and its number
        "grid.alpha": 0.25,
        "axes.prop_cycle": matplotlib.rcsetup.cycler(color=palette.COLOURS),
        "axes.formatter.limits": (-5, 7),  # as people write numbers, without a power of ten
        "axes.formatter.useoffset": False,
        "font.size": 10,
    }
    with pyplot.rc_context(look):
        drawn, axes = pyplot.subplots(
            1, panels, figsize=(width, height), layout="constrained", width_ratios=widths
        )
    return drawn, axes


def place_legend(axes: Any, **look: Any) -> None:
    """The legend beside the plot, where it covers no data."""
    place = {"loc": "upper left", "bbox_to_anchor": (1.01, 1.0), "borderaxespad": 0.0}
    axes.legend(**{"frameon": False, "fontsize": 8, **place, **look})


def store(drawn: Any, path: str | Path) -> Path:
    from matplotlib import pyplot

    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        drawn.savefig(target, dpi=150)
    except (OSError, ValueError) as refused:  # ValueError: a suffix no picture has
        why = getattr(refused, "strerror", None) or str(refused)
        raise RecordError(
            "plot", f"{target} cannot be written ({why})", "Name another file, such as loss.png."
        ) from refused
    finally:
        pyplot.close(drawn)
    return target


def plot_losses(
    path: str | Path,
    losses: Sequence[tuple[int, float]],
    evaluations: Sequence[tuple[int, float]] = (),
) -> Path:
    """Training and validation loss over the steps."""
    drawn, axes = figure()
    run = palette.COLOURS[0]
    axes.plot(*zip(*losses), label="training", linewidth=1.2, color=run)
    if evaluations:
        look = {"color": palette.tone(run, 1), "linestyle": "--", "marker": "o", "markersize": 4}
        axes.plot(*zip(*evaluations), label="validation", **look)
    axes.set(xlabel="step", ylabel="loss")
    count_whole(axes.xaxis)
    place_legend(axes)
    return store(drawn, path)


def plot_bars(
    path: str | Path,
    names: Sequence[str],
    panels: Mapping[str, Sequence[float | None]],
    what: str = "",
) -> Path:
    """One panel a quantity, one bar a row: the way settings are compared.

    Args:
        what: the names are of.
    """
    return store(bar_panels(names, panels, what), path)


def bar_panels(
    names: Sequence[str], panels: Mapping[str, Sequence[float | None]], what: str
) -> Any:
    wide = max(3.6, 1.0 + 0.62 * len(names))  # for a number above each bar
    drawn, axes = figure(wide * len(panels), 3.6, panels=len(panels))
    for axis, (title, values) in zip([axes] if len(panels) == 1 else axes, panels.items()):
        draw_bars(axis, *legible(title, values))
        axis.set_xticks(range(len(names)), names, rotation=30, ha="right")
        axis.set_xlabel(what)
        axis.grid(axis="x", visible=False)
    return drawn


def draw_bars(axes: Any, title: str, values: Sequence[float | None]) -> None:
    """Bars with their numbers; an owner of memory in its colour."""
    heights = [0.0 if value is None else value for value in values]
    owner = title.partition(" ")[0]
    colour = palette.owner_colour(owner) if owner in palette.OWNERS else palette.COLOURS[0]
    bars = axes.bar(range(len(heights)), heights, color=colour)
    label_bars(axes, bars, ["unknown" if v is None else digits(v) for v in values], 8)
    axes.margins(y=0.12)  # for the numbers
    mark_thousands(axes.yaxis, max(heights, default=0.0))
    axes.set_title(title)


def legible(title: str, values: Sequence[float | None]) -> tuple[str, Sequence[float | None]]:
    """MiB for GiB where no value reaches one."""
    if not title.endswith("GiB") or max(filter(None, values), default=1.0) >= 1:
        return title, values
    return title.replace("GiB", "MiB"), [None if v is None else 1024 * v for v in values]
