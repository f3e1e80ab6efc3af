"""The tables of `stepladder bench` about ranks that talk: collectives, the ring, DP against DDP."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from stepladder.cli.commands.calibrate import keep
from stepladder.cli.results.communication_plots import plot_collectives, plot_ring
from stepladder.cli.results.plots import plot_bars
from stepladder.cli.results.tables import as_json, progress, table
from stepladder.errors import PlanError, WorldError
from stepladder.plan import Layout, Plan
from stepladder.plan.layout import REST
from stepladder.record import Calibration, calibration_path, load_calibration

if TYPE_CHECKING:
    from stepladder.bench import CollectiveRow, LatencyBandwidthFit
    from stepladder.bench.collectives import CollectiveUse

LARGEST_KIB = 64 * 1024
RANKS = 2
ODD_BYTES = 2**20 + 12  # a number of elements that 2 to 10 ranks do not divide


def bench_collectives(options: argparse.Namespace) -> int:
    from stepladder.bench import device_name, fit_line, fit_link
    from stepladder.bench.collectives import measure_collective
    from stepladder.launch import Ranks

    plan, uses = asked(options)
    rows: list[CollectiveRow] = []
    lines: list[tuple[CollectiveRow, LatencyBandwidthFit | None]] = []
    problems: list[str] = []
    settings: dict[str, Any] = {"device": options.device, "steps": options.steps}
    with Ranks(plan.layout.num_ranks) as pool:
        for use in progress(uses, "collectives"):
            try:
                some = measure_collective(pool, use, plan.layout, sizes(options), **settings)
            except WorldError as refused:  # by this backend; the others may well run
                problems.append(f"{use.collective}: {refused}")
                continue
            rows += some
            lines.append((some[0], fit_line(some)))
    link = fit_link(rows)
    if options.plot:
        plot_collectives(options.plot, rows, {(r.collective, r.axes): line for r, line in lines})
    kept = keep_link(link, options) if options.keep else ""
    if options.json:
        as_json({**collectives_record(rows, lines, link), "problems": problems})
        return 0 if rows else 1
    where = f"{plan.layout.num_ranks} ranks on {device_name(options.device)}"
    columns = ["collective", "over", "ways", "bytes", "µs", "algorithm GB/s", "bus GB/s"]
    table(f"Collectives: {where}", columns, [cells_of(row) for row in rows])
    table(
        "seconds = hops x latency + bytes sent / rate",
        ["collective", "over", "latency µs", "rate GB/s", "typical error"],
        [[row.collective, row.axes, *line_cells(line)] for row, line in lines]
        + [["all that forecasts use", "", *line_cells(link)]],
    )
    for sentence in filter(None, [*problems, kept]):
        print(sentence)
    return 0 if rows else 1


def asked(options: argparse.Namespace) -> tuple[Plan, Sequence[CollectiveUse]]:
    """The settled plan and what is to be measured of it; without one, everything over all ranks."""
    from stepladder.bench import all_collectives
    from stepladder.bench.collectives import collectives_of_plan

    if not options.plan:
        ranks = options.ranks or RANKS
        if ranks == 1:
            raise PlanError("ranks", "1 rank has nobody to talk to", "Use 2 or more.")
        return Plan(layout=Layout(replicate=ranks)), all_collectives()
    plan = Plan.parse(options.plan)
    usual = RANKS if REST in plan.layout.shape else plan.layout.num_ranks
    settled = plan.settle(options.ranks or usual)
    uses = collectives_of_plan(settled)
    if not uses:
        problem = f"'{options.plan}' runs on one rank and sends nothing"
        raise PlanError("plan", problem, "Give it an axis, such as 'zero3 shard=2'.")
    return settled, uses


def sizes(options: argparse.Namespace) -> list[int]:
    """1 KiB and every fourfold of it up to the largest."""
    largest = options.largest or LARGEST_KIB
    return [1024 * 4**power for power in range(int(math.log(largest, 4) + 1e-9) + 1)]


def with_odd(even: list[int]) -> list[int]:
    """The sizes and, beside 1 MiB, one that ranks do not divide."""
    return sorted([*even, ODD_BYTES]) if 2**20 in even else even


def cells_of(row: CollectiveRow) -> list[Any]:
    rates = (row.bytes_per_second / 1e9, row.bus_bytes_per_second / 1e9)
    return [row.collective, row.axes, row.ways, size_of(row.bytes), row.seconds * 1e6, *rates]


def line_cells(line: LatencyBandwidthFit | None) -> list[Any]:
    if line is None:
        return [None, None, None]
    return [line.latency_seconds * 1e6, line.bytes_per_second / 1e9, f"{line.error:.0%}"]


def size_of(num_bytes: int) -> str:
    for unit, size in (("MiB", 2**20), ("KiB", 2**10)):
        if num_bytes >= size and num_bytes % size == 0:
            return f"{num_bytes // size} {unit}"
    return f"{num_bytes} B"


def collectives_record(
    rows: list[CollectiveRow],
    lines: list[tuple[CollectiveRow, LatencyBandwidthFit | None]],
    link: LatencyBandwidthFit | None,
) -> dict[str, Any]:
    return {
        "rows": [
            {
                **asdict(row),
                "bytes_per_second": row.bytes_per_second,
                "bus_bytes_per_second": row.bus_bytes_per_second,
            }
            for row in rows
        ],
        "lines": [
            {"collective": row.collective, "axes": row.axes, "ways": row.ways,
             "line": None if line is None else asdict(line)}
            for row, line in lines
        ],
        "link": None if link is None else asdict(link),
    }  # fmt: skip


def keep_link(link: LatencyBandwidthFit | None, options: argparse.Namespace) -> str:
    """Write the measured link into this device's calibration, where forecasts find it."""
    from stepladder.calibrate.calibrate import device_name as table_name
    from stepladder.world import pick_device

    if link is None:
        problem = "what was measured does not tell latency from rate"
        raise PlanError("--keep", problem, "Measure more sizes: leave out --largest.")
    device = table_name(pick_device(options.device))
    known = load_calibration(device) or Calibration(device=device)
    path = calibration_path(device)
    found = replace(
        known,
        inside_bytes_per_second=link.bytes_per_second,
        inside_latency_seconds=link.latency_seconds,
    )
    keep(found, path)
    return f"Kept in {path}"


def bench_ring(options: argparse.Namespace) -> int:
    from stepladder.bench import device_name
    from stepladder.bench.ring_all_reduce import measure_ring
    from stepladder.launch import Ranks

    ranks, wanted = options.ranks or RANKS, with_odd(sizes(options))
    with Ranks(ranks) as pool:
        found = measure_ring(pool, wanted, device=options.device, steps=options.steps)
        rows = list(progress(found, "sizes", len(wanted)))
    if options.plot:
        plot_ring(options.plot, ranks, rows)
    if options.json:
        as_json([asdict(row) for row in rows])
    else:
        title = f"Ring all-reduce: {ranks} ranks on {device_name(options.device)}"
        columns = ["bytes", "ring ms", "backend ms", "ring/backend", "sent by a rank", "by formula",
                   "on the wire", "backend's wire", "difference", "same bits"]  # fmt: skip
        cells = [
            [size_of(row.bytes), row.ring_ms, row.backend_ms, row.ring_ms / row.backend_ms,
             row.sent_bytes, row.formula_bytes, row.wire_bytes, row.backend_wire_bytes,
             row.difference, row.same]
            for row in rows
        ]  # fmt: skip
        table(title, columns, cells)
    return 0 if all(row.exact and row.same for row in rows) else 1


def bench_dp(options: argparse.Namespace) -> int:
    from stepladder.bench import DataParallelWorkload, device_name, measure_data_parallel
    from stepladder.launch import Ranks
    from stepladder.world import pick_device

    on_gpu = pick_device(options.device).type == "cuda"
    trial = DataParallelWorkload(
        options.model or ("gpt2" if on_gpu else "gpt-tiny"),
        options.batch or (16 if on_gpu else 8),
        options.sequence or (1024 if on_gpu else 128),
        options.ranks or RANKS,
        options.device,
        options.steps,
    )
    with Ranks(trial.ways) as pool:
        rows = list(progress(measure_data_parallel(pool, trial), "ways", 3))
    first = rows[0]
    if options.plot:
        names = ["one process", "threads", "DDP"]
        plot_bars(options.plot, names, {"samples a second": [r.samples_per_second for r in rows]})
    if options.json:
        as_json([asdict(row) for row in rows])
    else:
        title = f"DP against DDP: {trial.model}, batch {trial.batch}, {trial.ways} ways"
        columns = ["way", "processes", "ms/step", "samples/s", "speed-up", "loss", "difference"]
        cells = [
            [row.name, row.processes, row.step_ms, row.samples_per_second,
             first.step_ms / row.step_ms, row.loss, abs(row.loss - first.loss) / first.loss]
            for row in rows
        ]  # fmt: skip
        table(f"{title}, on {device_name(options.device)}", columns, cells)
    return 0
