"""`stepladder bench walls`: memory, compute and communication, and what passes each."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from stepladder.cli.results.bench_tables.sharding_tables import MIB, RANKS
from stepladder.cli.results.plots import draw_bars, figure, store
from stepladder.cli.results.tables import as_json, digits, gib, percent, progress, table
from stepladder.palette import REFERENCE

if TYPE_CHECKING:
    from stepladder.bench.walls import CountedRow, ForecastRow, TimedRow


def bench_walls(options: argparse.Namespace) -> int:
    """Three walls; 1 where nothing passes the memory's."""
    from stepladder.bench.walls import (
        COMMUNICATION,
        MEMORY,
        WallLoad,
        budget_of,
        count_plans,
        forecast_walls,
        plans_of,
        time_ranks,
    )
    from stepladder.launch import Ranks

    load = WallLoad(options.model or "gpt-tiny", options.batch or 16, options.sequence or 64,
                    options.ranks or RANKS, options.steps)  # fmt: skip
    with Ranks(load.ranks) as pool:
        counted = list(progress(count_plans(pool, load), "plans", len(plans_of(load))))
        timed = time_ranks(pool, load)
    budget, forecasts = budget_of(counted, (options.budget or 0) * MIB or None), forecast_walls()
    held, sent = ([row for row in counted if wall in row.walls]
                  for wall in (MEMORY, COMMUNICATION))  # fmt: skip
    passed = [row.name for row in held if row.counted.peak_bytes <= budget]
    if options.plot:
        store(draw_walls(held, timed, sent, budget), options.plot)
    if options.json:
        as_json({"load": load, "budget_bytes": budget, "counted": [record(r) for r in counted],
                 "timed": timed, "forecasts": forecasts})  # fmt: skip
        return 0 if passed else 1
    where = f"{load.model}, {load.ranks} ranks"
    show_memory(where, held, budget)
    show_compute(timed)
    show_communication(where, sent)
    show_forecasts(forecasts)
    print(conclusion(passed, timed, sent))
    return 0 if passed else 1


def record(row: CountedRow) -> dict[str, Any]:
    return {**asdict(row), "peak_bytes": row.counted.peak_bytes,
            "sent_per_sample": row.counted.sent_per_sample}  # fmt: skip


def show_memory(where: str, rows: Sequence[CountedRow], budget: int) -> None:
    cells = [
        [row.name, row.counted.words, row.counted.peak_bytes / MIB,
         percent(row.counted.peak_bytes / rows[0].counted.peak_bytes),
         "passes" if row.counted.peak_bytes <= budget else "needs more"]
        for row in rows
    ]  # fmt: skip
    table(f"The wall of memory: {digits(budget / MIB)} MiB a rank; {where}",
          ["way", "plan", "MiB a rank", "of plain", "budget"], cells)  # fmt: skip


def show_compute(rows: Sequence[TimedRow]) -> None:
    """Titles are broken at the width of their table, so this one is short."""
    cells = [[row.ranks, row.seconds * 1e3, f"{row.times_faster:.2f}"] for row in rows]
    table("The wall of compute",
          ["ranks", "ms/step", "times faster"], cells)  # fmt: skip


def show_communication(where: str, rows: Sequence[CountedRow]) -> None:
    plain = rows[0].counted.sent_per_sample
    cells = []
    for row in rows:
        each = row.counted.sent_per_sample
        sizes = row.counted.sent_bytes / 1024, each / 1024
        cells.append([row.name, row.counted.words, *sizes, f"{each / plain:.3g}"])
    table(f"The wall of communication: sent by a rank; {where}",
          ["way", "plan", "KiB a step", "KiB a sample", "of plain"], cells)  # fmt: skip


def show_forecasts(rows: Sequence[ForecastRow]) -> None:
    cells = [
        [row.wall, row.model, row.cluster, row.plan,
         gib(row.memory_bytes) + ("" if row.fits else ", too much"),
         f"{row.step_seconds:.3g} s", f"{row.communication_share:.0%}", f"{row.days:,.3g}"]
        for row in rows
    ]  # fmt: skip
    table("The same walls by the planner's forecast; days are for 300 billion tokens",
          ["wall", "model", "cluster", "plan", "memory", "step", "communication", "days"],
          cells)  # fmt: skip


def conclusion(passed: Sequence[str], timed: Sequence[TimedRow], sent: Sequence[CountedRow]) -> str:
    """What passes each wall here."""
    least = min(sent, key=lambda row: row.counted.sent_per_sample)
    fewer = sent[0].counted.sent_per_sample / least.counted.sent_per_sample
    return (
        f"Within the budget: {', '.join(passed) or 'nothing'}.\n"
        f"{timed[-1].ranks} ranks are {timed[-1].times_faster:.2f} times as fast as one.\n"
        f"{least.name} sends {digits(fewer)} times fewer bytes a sample. 'stepladder bench "
        "compression' times that over slow links."
    )


def draw_walls(
    held: Sequence[CountedRow], timed: Sequence[TimedRow], sent: Sequence[CountedRow], budget: int
) -> Any:
    drawn, (memory, compute, traffic) = figure(15.0, 4.2, panels=3, widths=(6, 2, 6))
    panels = (
        (memory, "MiB a rank", [(row.name, row.counted.peak_bytes / MIB) for row in held]),
        (compute, "times faster, by ranks", [(str(r.ranks), r.times_faster) for r in timed]),
        (traffic, "KiB sent a sample", [(r.name, r.counted.sent_per_sample / 1024) for r in sent]),
    )
    for axes, title, bars in panels:
        draw_bars(axes, title, [value for _, value in bars])
        axes.set_xticks(range(len(bars)), [name for name, _ in bars], rotation=30, ha="right")
        axes.grid(axis="x", visible=False)
    memory.axhline(budget / MIB, linestyle="--", linewidth=1.0, color=REFERENCE, label="budget")
    memory.legend(frameon=False, fontsize=8)
    return drawn
