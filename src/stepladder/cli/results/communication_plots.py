"""Pictures of communication: collectives by size, and a ring all-reduce step by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepladder import palette

from .plot_axes import mark_bytes, mark_log
from .plots import figure, place_legend, store

if TYPE_CHECKING:
    from stepladder.bench import CollectiveRow, LatencyBandwidthFit
    from stepladder.bench.ring_all_reduce import Hop, RingRow

BOX = 0.32  # high, where a rank's row is 1
MARKERS = "os^"  # of one collective over several axes


def plot_collectives(
    path: str | Path,
    rows: Sequence[CollectiveRow],
    lines: Mapping[tuple[str, str], LatencyBandwidthFit | None],
) -> Path:
    """Time and bus bandwidth by size, each collective in its colour, the fitted line dashed."""
    return store(draw_collectives(rows, lines), path)


def draw_collectives(
    rows: Sequence[CollectiveRow],
    lines: Mapping[tuple[str, str], LatencyBandwidthFit | None],
) -> Any:
    drawn, (left, right) = figure(11, 4.2, panels=2)
    axes = list(dict.fromkeys(axes for _, axes in lines))
    for key, line in lines.items():
        some = [row for row in rows if (row.collective, row.axes) == key]
        place = axes.index(key[1])
        colour = palette.tone(palette.collective_colour(key[0]), place)
        look = {"marker": MARKERS[place % len(MARKERS)], "color": colour, "markersize": 5}
        sizes = [row.bytes for row in some]
        label = f"{key[0].replace('_', ' ')} over {key[1]} ({some[0].ways})"
        left.loglog(sizes, [row.seconds * 1e6 for row in some], label=label, **look)
        if line is not None:
            left.loglog(sizes, [line.seconds(row) * 1e6 for row in some], "--", color=colour)
        rates = [row.bus_bytes_per_second / 1e9 for row in some]
        right.loglog(sizes, rates, label=label, **look)
    left.set(xlabel="message", ylabel="µs", title="time; dashed: hops × latency + bytes / rate")
    right.set(xlabel="message", ylabel="GB/s", title="bus bandwidth")
    for panel in (left, right):
        mark_bytes(panel.xaxis)
        mark_log(panel.yaxis)
    place_legend(right)
    return drawn


def plot_ring(path: str | Path, ranks: int, rows: Sequence[RingRow]) -> Path:
    """The ring step by step, and its times beside the backend's."""
    return store(draw_ring(ranks, rows), path)


def draw_ring(ranks: int, rows: Sequence[RingRow]) -> Any:
    steps = 2 * (ranks - 1)
    width = max(2.2 * (steps + 1), 5.0)
    drawn, (left, right) = figure(width + 5, max(1.1 * ranks + 1.6, 4), 2, (width, 5))
    draw_steps(left, ranks)
    even = [row for row in rows if row.bytes % 1024 == 0]  # the odd one lies on its neighbour
    sizes = [row.bytes for row in even]
    right.loglog(sizes, [row.ring_ms for row in even], "o-", label="ring on send and receive")
    right.loglog(sizes, [row.backend_ms for row in even], "s--", label="the backend's all-reduce")
    right.set(xlabel="message", ylabel="ms", title=f"time on {ranks} ranks")
    mark_bytes(right.xaxis)
    mark_log(right.yaxis)
    place_legend(right, loc="upper center", bbox_to_anchor=(0.5, -0.16))
    return drawn


def draw_steps(axes: Any, ranks: int) -> None:
    """A row a rank, a column a step, a box a chunk: darker the more ranks are added up in it."""
    from stepladder.bench.ring_all_reduce import ring_hops, ring_states

    hops, states = ring_hops(ranks), ring_states(ranks)
    box = 0.72 / ranks
    for step, held in enumerate(states):
        for chunk in range(ranks):
            across, _ = place(step, 0, chunk, box)
            axes.text(across, -0.3, f"c{chunk}", ha="center", fontsize=7, color=palette.SOFT)
        for rank in range(ranks):
            for chunk in range(ranks):
                draw_chunk(axes, place(step, rank, chunk, box), box, held[rank][chunk], ranks)
    for hop in hops:
        draw_hop(axes, hop, box)
    if ranks > 1:
        axes.axvline(ranks - 1 + 0.5, color=palette.SOFT, linestyle=":")
    axes.set(
        xlim=(-0.5, len(states) - 0.5),
        ylim=(ranks - 0.5, -0.6),
        title="A box is a chunk (c0, c1 …) with how many ranks are added up in it.\n"
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


def draw_hop(axes: Any, hop: Hop, box: float) -> None:
    """An arrow from edge to edge, behind the boxes that it passes: their numbers stay legible."""
    across, source = place(hop.step, hop.source, hop.chunk, box)
    there, target = place(hop.step + 1, hop.target, hop.chunk, box)
    side = BOX / 2 if target > source else -BOX / 2
    look = {"arrowstyle": "-|>", "color": palette.COLOURS[1 if hop.adds else 2], "shrinkA": 0,
            "shrinkB": 0, "linewidth": 1.3}  # fmt: skip
    end, start = (there, target - side), (across, source + side)
    axes.annotate("", xy=end, xytext=start, arrowprops=look, zorder=0.5)


def draw_chunk(axes: Any, middle: tuple[float, float], box: float, added: int, ranks: int) -> None:
    from matplotlib.patches import Rectangle

    share = added / ranks
    corner = (middle[0] - box / 2, middle[1] - BOX / 2)
    face = (1 - 0.86 * share, 1 - 0.65 * share, 1 - 0.35 * share)
    axes.add_patch(Rectangle(corner, box, BOX, facecolor=face, edgecolor="white", linewidth=1))
    colour = "white" if share > 0.6 else "black"
    axes.text(*middle, str(added), ha="center", va="center", fontsize=8, color=colour)
