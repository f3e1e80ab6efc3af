"""`stepladder bench pipeline`: schedules side by side, drawn as the field draws them."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepladder.cli.results.bench_tables.sharding_tables import MIB
from stepladder.cli.results.plots import figure, store
from stepladder.cli.results.tables import as_json, progress, table
from stepladder.palette import TEXT, series_colours

if TYPE_CHECKING:
    from stepladder.bench.counted_plans import CountedPlan
    from stepladder.bench.pipeline_schedules import ScheduleTimeline

RANKS, MICROS = 4, 8
SHADES = {"forward": 1.0, "backward": 0.55, "input": 0.55, "weight": 0.25}


def bench_pipeline(options: argparse.Namespace) -> int:
    from stepladder.bench.counted_plans import CountLoad, compare_equal, equal_plans
    from stepladder.bench.pipeline_schedules import SCHEDULES, ScheduleCase, measure_schedules
    from stepladder.launch import Ranks

    ranks = options.ranks or RANKS
    micros = options.batch or -(-MICROS // ranks) * ranks
    equal_plans(ranks, micros)  # refused before anything is measured
    cases = [
        ScheduleCase(schedule, ranks, micros, work)
        for work in ("waiting", "matrix")
        for schedule in SCHEDULES
    ]
    load = CountLoad(options.model or "gpt-tiny", options.sequence or 64, options.steps)
    with Ranks(ranks) as pool:
        found = measure_schedules(pool, cases, steps=options.steps)
        rows = list(progress(found, "schedules", len(cases)))
        equal = compare_equal(pool, load, micros, ranks=ranks)
        counted = dict(progress(equal, "plans", len(equal_plans(ranks, micros))))
    if options.plot:
        plot_timelines(options.plot, [row for row in rows if row.case.work == "waiting"])
    if options.json:
        as_json({"schedules": [record(row) for row in rows], "equal_devices": counted})
        return 0
    columns = ["blocks", "schedule", "ms/step", "idle", "by formula", "difference"]
    cells = [
        [row.case.work, row.case.schedule, row.step_ms, f"{row.idle:.1%}",
         f"{row.case.formula:.1%}", f"{100 * (row.idle - row.case.formula):+.1f} points"]
        for row in rows
    ]  # fmt: skip
    table(f"Pipeline: {ranks} ranks, {micros} micro-batches, on CPU", columns, cells)
    print(
        "waiting: blocks that take a set time and no core, as if each rank were a device.\n"
        "matrix: blocks that compute; ranks share this machine's cores, which also idles them."
    )
    show_equal(f"{load.model}, {ranks} ranks, batch {micros}", counted)
    return 0


def show_equal(where: str, counted: Mapping[str, CountedPlan]) -> None:
    """A pipeline beside data parallelism on as many devices, against DDP."""
    plain = counted["DDP"]
    cells = [
        [name, row.words, row.peak_bytes / MIB, f"{row.peak_bytes / plain.peak_bytes:.2f}",
         row.sent_bytes / 1024, f"{row.sent_bytes / plain.sent_bytes:.2f}",
         f"{(row.seconds or 0.0) / (plain.seconds or 1.0):.2f}"]
        for name, row in counted.items()
    ]  # fmt: skip
    table(f"Pipeline and data parallel on equal devices: {where}",
          ["way", "plan", "MiB, fullest rank", "of DDP's", "KiB sent by a rank", "of DDP's ",
           "time, of DDP's"], cells)  # fmt: skip


def record(row: ScheduleTimeline) -> dict[str, Any]:
    return {**asdict(row), "formula": row.case.formula}


def plot_timelines(path: str | Path, rows: Sequence[ScheduleTimeline]) -> Path:
    """A band a schedule, a line a rank, a colour a micro-batch; the later half of a rank's stages
    is hatched."""
    from matplotlib.gridspec import GridSpec

    drawn, axes = figure(13, 1.0 + 0.36 * sum(row.case.ranks + 1.6 for row in rows))
    axes.remove()
    grid = GridSpec(len(rows), 1, figure=drawn, height_ratios=[r.case.ranks + 1 for r in rows])
    longest = max(row.seconds for row in rows if row.case.schedule != "naive") * 1e3
    for index, row in enumerate(rows):
        axis = drawn.add_subplot(grid[index])
        draw_timeline(axis, row)
        axis.set_xlim(0, max(longest, row.seconds * 1e3))
        if index == len(rows) - 1:
            axis.set_xlabel("ms.  Number: micro-batch. Full colour: forward. Lighter: backward "
                            "(of the input alone in zero-bubble). Lightest: weights. "
                            "Hatched: a rank's second stage.")  # fmt: skip
    return store(drawn, path)


def draw_timeline(axis: Any, row: ScheduleTimeline) -> None:
    from matplotlib.patheffects import withStroke

    case = row.case
    colours = series_colours(1 + max(event.micro for events in row.events for event in events))
    for rank, events in enumerate(row.events):
        first = min(event.stage for event in events)
        for event in events:
            left, width = event.start * 1e3, (event.end - event.start) * 1e3
            if width < 0.2:  # what the first stage has instead of an input's gradient
                continue
            colour = colours[event.micro]
            axis.barh(
                rank, width, left=left, height=0.86, color=(*rgb(colour), SHADES[event.kind]),
                edgecolor="white", linewidth=0.6, hatch="///" if event.stage != first else None,
            )  # fmt: skip
            # On what it is drawn on, also where that is hatched.
            ground = mixed(colour, SHADES[event.kind])
            ink = "white" if SHADES[event.kind] == 1 else TEXT
            outline = [withStroke(linewidth=2.5, foreground=ground)]
            axis.text(left + width / 2, rank, str(event.micro), ha="center", va="center",
                      fontsize=7, color=ink, path_effects=outline)  # fmt: skip
    axis.set_yticks(range(case.ranks), [f"rank {rank}" for rank in range(case.ranks)], fontsize=8)
    axis.set_ylim(case.ranks - 0.5, -0.5)
    axis.grid(visible=False)
    axis.set_title(
        f"{case.schedule}: idle {row.idle:.1%}, by formula {case.formula:.1%}",
        loc="left", fontsize=9,
    )  # fmt: skip


def mixed(colour: str, share: float) -> tuple[float, float, float]:
    """A colour on a white ground, through which so much of it is seen."""
    red, green, blue = (1 - share * (1 - part) for part in rgb(colour))
    return red, green, blue


def rgb(colour: str) -> tuple[float, float, float]:
    red, green, blue = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    return red, green, blue
