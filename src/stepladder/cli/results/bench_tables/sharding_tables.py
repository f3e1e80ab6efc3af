"""The tables of `stepladder bench` about sharing the work: ZeRO, scaling, accumulation, links."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from stepladder.cli.results.plot_axes import count_whole
from stepladder.cli.results.plots import figure, place_legend, plot_bars, store
from stepladder.cli.results.tables import as_json, progress, table
from stepladder.palette import REFERENCE

RANKS = 2
MIB = 2**20
OWNERS = ("parameters", "gradients", "optimizer")


def workload(options: argparse.Namespace, num_batches: int = 4) -> Any:
    from stepladder.bench import make_workload

    return make_workload(
        options.model or "gpt-tiny",
        batch=options.batch or 8,
        sequence=options.sequence or 64,
        num_batches=num_batches,
        device=options.device,
    )


def bench_zero(options: argparse.Namespace) -> int:
    """Memory, speed and traffic under DDP and ZeRO; 1 where the state is not as in theory."""
    from stepladder.bench.zero import ENOUGH, measure_zero, strategies
    from stepladder.launch import Ranks

    ranks, work = options.ranks or RANKS, workload(options)
    with Ranks(ranks) as pool:
        found = measure_zero(pool, work, ranks=ranks, words=options.plan, steps=options.steps)
        rows = list(progress(found, "strategies", len(strategies(ranks))))
    whole = sum(getattr(rows[0].theory, owner) for owner in OWNERS)
    cells = []
    for row in rows:
        held = [getattr(row.measured, owner) for owner in OWNERS]
        expected = sum(getattr(row.theory, owner) for owner in OWNERS)
        shares = (f"{sum(held) / whole:.1%}", f"{expected / whole:.1%}", f"{row.error:.2%}")
        sent = "not counted" if row.sent_bytes is None else row.sent_bytes / MIB
        pace = row.samples_per_second
        speed = (pace, f"{pace / rows[0].samples_per_second:.2f}")
        sizes = [size / MIB for size in held]
        cells.append([row.name, *sizes, *shares, row.peak_bytes / MIB, sent, *speed])
    if options.plot:
        plot_strategies(options.plot, rows)
    if options.json:
        as_json([{**asdict(row), "error": row.error} for row in rows])
    else:
        owners = [f"{owner} MiB" for owner in OWNERS]
        shares_of = ["of DDP's state", "in theory", "furthest"]
        columns = ["strategy", *owners, *shares_of, "peak MiB", "sent MiB", "samples/s", "of DDP's"]
        table(f"Sharding strategies, a rank of {ranks}: {work.name}", columns, cells)
    return 1 if any(row.error > ENOUGH for row in rows) else 0


def plot_strategies(path: str, rows: list[Any]) -> None:
    panels = {f"{owner} MiB": [getattr(row.measured, owner) / MIB for row in rows]
              for owner in OWNERS}  # fmt: skip
    panels["peak MiB"] = [row.peak_bytes / MIB for row in rows]
    if all(row.sent_bytes is not None for row in rows):
        panels["sent MiB"] = [row.sent_bytes / MIB for row in rows]
    panels["samples/s"] = [row.samples_per_second for row in rows]
    plot_bars(path, [row.name for row in rows], panels, "strategy")


def bench_scaling(options: argparse.Namespace) -> int:
    from stepladder.bench.scaling import ScalingWorkload, measure_scaling
    from stepladder.launch import Ranks

    ranks = options.ranks or RANKS
    load = ScalingWorkload(
        options.model or "gpt-tiny",
        options.batch or 8,
        options.sequence or 64,
        options.plan or "fp32 ddp",
        options.device,
        options.steps,
    )
    with Ranks(ranks) as pool:
        rows = list(progress(measure_scaling(pool, load), "sizes"))
    cells = [
        [row.kind, row.ranks, row.batch, row.step_ms, row.samples_per_second,
         f"{row.efficiency:.1%}", lost_to(row.lost), row.note]
        for row in rows
    ]  # fmt: skip
    if options.plot:
        plot_scaling(options.plot, rows)
    if options.json:
        as_json([asdict(row) for row in rows])
    else:
        columns = ["scaling", "ranks", "batch", "ms/step", "samples/s", "efficiency", "lost to",
                   "note"]  # fmt: skip
        table(f"Scaling: {load.model}, {load.words}, one thread a rank", columns, cells)
    return 0


def lost_to(lost: Mapping[str, float]) -> str:
    """The three largest causes of a loss, as shares of the step."""
    named = [f"{cause.replace('_', ' ')} {share:.0%}" for cause, share in lost.items()]
    return ", ".join(named[:3])


def plot_scaling(path: str, rows: list[Any]) -> None:
    drawn, axes = figure()
    for kind in dict.fromkeys(row.kind for row in rows):
        some = [row for row in rows if row.kind == kind]
        axes.plot([row.ranks for row in some], [row.efficiency for row in some], "o-", label=kind)
    axes.axhline(1.0, linestyle="--", linewidth=0.8, color=REFERENCE)
    best = max([1.0, *(row.efficiency for row in rows)])
    axes.set(xlabel="ranks", ylabel="efficiency", ylim=(0, 1.15 * best))
    count_whole(axes.xaxis)
    place_legend(axes)
    store(drawn, path)


def bench_accumulation(options: argparse.Namespace) -> int:
    """Loss curves of one global batch in more and more micro-batches; 1 where they part."""
    from stepladder.bench.accumulation import measure_accumulation
    from stepladder.plan import Plan

    work = workload(options, num_batches=options.steps)
    found = measure_accumulation(work, Plan.parse(options.plan or "fp32"))
    rows = list(progress(found, "settings"))
    cells = [
        [row.micro_batches, row.micro, row.step_ms, row.activation_bytes / MIB, row.losses[-1],
         f"{row.difference:.1e}"]
        for row in rows
    ]  # fmt: skip
    if options.plot:
        plot_curves(options.plot, rows)
    if options.json:
        as_json([asdict(row) for row in rows])
    else:
        columns = [
            "micro-batches",
            "micro",
            "ms/step",
            "activations MiB",
            "last loss",
            "difference",
        ]
        table(f"Accumulation: {work.name}, {options.steps} steps", columns, cells)
    return 0 if all(row.same for row in rows) else 1


def plot_curves(path: str, rows: list[Any]) -> None:
    drawn, axes = figure()
    for index, row in enumerate(rows):
        axes.plot(
            row.losses,
            label=f"{row.micro_batches} of {row.micro}",
            linewidth=2.5 - 2 * index / len(rows),
        )
    axes.set(xlabel="step", ylabel="loss")
    count_whole(axes.xaxis)
    place_legend(axes)
    store(drawn, path)


def bench_compression(options: argparse.Namespace) -> int:
    """A step over links of several speeds; 1 where no link could be made."""
    from stepladder.bench import measure_compression

    model, batch = options.model or "gpt-tiny", options.batch or 4
    found = measure_compression(
        model, batch=batch, sequence=options.sequence or 64, steps=options.steps
    )
    rows = list(progress(found, "links"))
    cells = [
        [row.link, row.compress, row.step_ms, row.against_none, row.loss, row.problem]
        for row in rows
    ]
    if options.plot:
        names = [f"{row.compress} {row.link}" for row in rows]
        plot_bars(options.plot, names, {"ms a step": [row.step_ms for row in rows]}, "link")
    if options.json:
        as_json([asdict(row) for row in rows])
    else:
        columns = ["link", "compress", "ms/step", "times faster", "last loss", "note"]
        table(f"Compression: {model}, DDP on 2 ranks, one at each end", columns, cells)
    return 0 if any(row.step_ms for row in rows) else 1
