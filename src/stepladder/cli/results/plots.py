"""Pictures of results, as PNG files. Matplotlib is imported when one is drawn."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepladder import palette
from stepladder.errors import RecordError

from .tables import digits

if TYPE_CHECKING:
    from stepladder.bench import CollectiveRow, LatencyBandwidthFit
    from stepladder.bench.ring_all_reduce import RingRow


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
    place_legend(axes)
    return store(drawn, path)


def plot_bars(
    path: str | Path, names: Sequence[str], panels: Mapping[str, Sequence[float | None]]
) -> Path:
    """One panel a quantity, one bar a row: the way two settings are compared."""
    drawn, axes = figure(3.6 * len(panels), 3.6, panels=len(panels))
    for axis, (title, values) in zip([axes] if len(panels) == 1 else axes, panels.items()):
        heights = [0.0 if value is None else value for value in values]
        bars = axis.bar(range(len(names)), heights, color=palette.COLOURS[0])
        axis.bar_label(bars, labels=["unknown" if v is None else digits(v) for v in values])
        axis.margins(y=0.12)  # for the numbers
        axis.set_xticks(range(len(names)), names, rotation=30, ha="right")
        axis.set_title(title)
        axis.grid(axis="x", visible=False)
    return store(drawn, path)


def plot_collectives(
    path: str | Path,
    rows: Sequence[CollectiveRow],
    lines: Mapping[tuple[str, str], LatencyBandwidthFit | None],
) -> Path:
    """Time and bus bandwidth by size, a colour a collective, the fitted line dashed."""
    drawn, (left, right) = figure(11, 4.2, panels=2)
    for (key, line), colour in zip(lines.items(), palette.series_colours(len(lines))):
        some = [row for row in rows if (row.collective, row.axes) == key]
        sizes = [row.bytes for row in some]
        label = f"{key[0]} over {key[1]} ({some[0].ways})"
        left.loglog(sizes, [row.seconds * 1e6 for row in some], "o-", color=colour, label=label)
        if line is not None:
            left.loglog(sizes, [line.seconds(row) * 1e6 for row in some], "--", color=colour)
        rates = [row.bus_bytes_per_second / 1e9 for row in some]
        right.loglog(sizes, rates, "o-", color=colour, label=label)
    left.set(xlabel="bytes", ylabel="µs", title="time; dashed: hops x latency + bytes / rate")
    right.set(xlabel="bytes", ylabel="GB/s", title="bus bandwidth")
    place_legend(right)
    return store(drawn, path)


def plot_ring(path: str | Path, ranks: int, rows: Sequence[RingRow]) -> Path:
    """The ring step by step, and its times beside the backend's."""
    steps = 2 * (ranks - 1)
    width = max(2.2 * (steps + 1), 5.0)
    drawn, (left, right) = figure(width + 5, max(1.1 * ranks + 1.6, 4), 2, (width, 5))
    draw_steps(left, ranks)
    even = [row for row in rows if row.bytes % 1024 == 0]  # the odd one lies on its neighbour
    sizes = [row.bytes for row in even]
    right.loglog(sizes, [row.ring_ms for row in even], "o-", label="ring on send and receive")
    right.loglog(sizes, [row.backend_ms for row in even], "s--", label="the backend's all-reduce")
    right.set(xlabel="bytes", ylabel="ms", title=f"time on {ranks} ranks")
    place_legend(right, loc="upper center", bbox_to_anchor=(0.5, -0.16))
    return store(drawn, path)


def draw_steps(axes: Any, ranks: int) -> None:
    """A row a rank, a column a step, a box a chunk: darker the more ranks are added up in it."""
    from stepladder.bench.ring_all_reduce import ring_hops, ring_states

    hops, states = ring_hops(ranks), ring_states(ranks)
    box = 0.72 / ranks
    for step, held in enumerate(states):
        for chunk in range(ranks):
            across, _ = place(step, 0, chunk, box)
            axes.text(across, -0.3, f"c{chunk}", ha="center", fontsize=7, color="#777777")
        for rank in range(ranks):
            for chunk in range(ranks):
                draw_chunk(axes, place(step, rank, chunk, box), box, held[rank][chunk], ranks)
    for hop in hops:
        start = place(hop.step, hop.source, hop.chunk, box)
        end = place(hop.step + 1, hop.target, hop.chunk, box)
        look = {"arrowstyle": "-|>", "color": palette.COLOURS[1 if hop.adds else 2], "shrinkA": 9,
                "shrinkB": 9, "linewidth": 1.3}  # fmt: skip
        axes.annotate("", xy=end, xytext=start, arrowprops=look)
    if ranks > 1:
        axes.axvline(ranks - 1 + 0.5, color="#999999", linestyle=":")
    axes.set(
        xlim=(-0.5, len(states) - 0.5),
        ylim=(ranks - 0.5, -0.6),
        title="box: a chunk (c0, c1 …), and how many ranks are added up in it. "
        "Orange: sent and added (reduce-scatter). Green: sent and kept (all-gather).",
    )
    names = ["start", *(f"after step {step}" for step in range(1, len(states)))]
    axes.set_xticks(range(len(states)), names)
    axes.set_yticks(range(ranks), [f"rank {rank}" for rank in range(ranks)])
    axes.title.set_fontsize(9)
    axes.grid(visible=False)


def place(step: int, rank: int, chunk: int, box: float) -> tuple[float, float]:
    """The middle of a chunk's box."""
    return step - 0.36 + box * (chunk + 0.5), float(rank)


def draw_chunk(axes: Any, middle: tuple[float, float], box: float, added: int, ranks: int) -> None:
    from matplotlib.patches import Rectangle

    share = added / ranks
    corner = (middle[0] - box / 2, middle[1] - 0.16)
    face = (1 - 0.86 * share, 1 - 0.65 * share, 1 - 0.35 * share)
    axes.add_patch(Rectangle(corner, box, 0.32, facecolor=face, edgecolor="white", linewidth=1))
    colour = "white" if share > 0.6 else "black"
    axes.text(*middle, str(added), ha="center", va="center", fontsize=8, color=colour)
