"""Pictures of results, as PNG files. Matplotlib is imported when one is drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stepladder.errors import RecordError

COLOURS = ("#2458a6", "#d1603d", "#3a8f5c", "#8a5fa8", "#a38a2f", "#5a6672")


def figure(width: float = 7.0, height: float = 4.0, panels: int = 1) -> tuple[Any, Any]:
    """A figure in the house's look, drawn without a screen."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    look: Any = {
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.alpha": 0.25,
        "axes.prop_cycle": matplotlib.rcsetup.cycler(color=COLOURS),
        "font.size": 10,
    }
    with pyplot.rc_context(look):
        drawn, axes = pyplot.subplots(1, panels, figsize=(width, height), layout="constrained")
    return drawn, axes


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
    axes.plot(*zip(*losses), label="training", linewidth=1.2)
    if evaluations:
        axes.plot(*zip(*evaluations), "o-", label="validation", markersize=4)
    axes.set(xlabel="step", ylabel="loss (nats a token)")
    axes.legend(frameon=False)
    return store(drawn, path)


def plot_bars(
    path: str | Path, names: Sequence[str], panels: Mapping[str, Sequence[float | None]]
) -> Path:
    """One panel a quantity, one bar a row: the way two settings are compared."""
    drawn, axes = figure(3.6 * len(panels), 3.6, panels=len(panels))
    for axis, (title, values) in zip([axes] if len(panels) == 1 else axes, panels.items()):
        heights = [0.0 if value is None else value for value in values]
        bars = axis.bar(range(len(names)), heights, color=COLOURS[0])
        axis.bar_label(bars, labels=["unknown" if v is None else f"{v:.3g}" for v in values])
        axis.set_xticks(range(len(names)), names, rotation=30, ha="right")
        axis.set_title(title)
        axis.grid(axis="x", visible=False)
    return store(drawn, path)
