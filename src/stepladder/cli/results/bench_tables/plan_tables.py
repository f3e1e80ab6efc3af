"""The tables of `stepladder bench` about one workload on one device: a row a setting."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from stepladder.cli.results.plots import plot_bars
from stepladder.cli.results.tables import as_json, progress, table

if TYPE_CHECKING:
    from stepladder.bench.plan_tables import TableSettings

LOADERS = ("0", "1", "2", "4", "auto")


def settings_of(options: argparse.Namespace) -> TableSettings:
    from stepladder.bench.plan_tables import TableSettings

    return TableSettings.fill(
        options.device, model=options.model, batch=options.batch, sequence=options.sequence
    )


def bench_precision(options: argparse.Namespace) -> int:
    from stepladder.bench.plan_tables import PRECISIONS, measure_precisions

    found = measure_precisions(settings_of(options), options.plan, steps=options.steps)
    rows = list(progress(found, "precisions", len(PRECISIONS)))
    first = next((row for row in rows if row.step_ms), None)
    cells = [
        [
            row.name,
            row.step_ms,
            ratio(first.step_ms if first else None, row.step_ms),
            row.peak_gib,
            row.loss,
            relative(first.loss if first else None, row.loss),
            row.mfu,
            row.problem,
        ]
        for row in rows
    ]
    columns = ["precision", "ms/step", "speed-up", "GiB", "loss", "difference", "MFU", "note"]
    panels = {"ms a step": column(cells, 1), "peak GiB": column(cells, 3)}
    return show(options, "Precisions", columns, cells, panels, rows)


def bench_batch(options: argparse.Namespace) -> int:
    from stepladder.bench.plan_tables import LARGEST_BATCH, batch_sizes, measure_batch_sizes
    from stepladder.bench.time_plans import best_batch

    largest = options.batch or LARGEST_BATCH
    found = measure_batch_sizes(
        settings_of(options), options.plan, largest=largest, steps=options.steps
    )
    rows = list(progress(found, "batch sizes", len(batch_sizes(largest))))
    best = best_batch(rows)
    cells = [
        [row.name, row.step_ms, row.tokens_per_second, row.peak_gib, row.mfu,
         "best" if row is best else row.problem]
        for row in rows
    ]  # fmt: skip
    columns = ["batch", "ms/step", "tokens/s", "GiB", "MFU", "note"]
    panels = {"tokens a second": column(cells, 2), "peak GiB": column(cells, 3)}
    return show(options, "Batch sizes", columns, cells, panels, rows)


def bench_recompute(options: argparse.Namespace) -> int:
    from stepladder.bench.plan_tables import RECOMPUTES, measure_recomputes

    found = measure_recomputes(settings_of(options), options.plan, steps=options.steps)
    rows = list(progress(found, "rows", len(RECOMPUTES)))
    first = rows[0]
    activations = [None if row.memory is None else row.memory.activations / 2**20 for row in rows]
    cells = [
        [row.name, row.step_ms, ratio(row.step_ms, first.step_ms), kept, row.peak_gib,
         relative(first.loss, row.loss), row.problem]
        for row, kept in zip(rows, activations)
    ]  # fmt: skip
    columns = ["recompute", "ms/step", "time", "activations MiB", "GiB", "loss difference", "note"]
    panels = {"ms a step": column(cells, 1), "activations MiB": column(cells, 3)}
    return show(options, "Recomputation", columns, cells, panels, rows)


def bench_data(options: argparse.Namespace) -> int:
    from stepladder.bench.data_loading import measure_loaders
    from stepladder.data import text_corpus
    from stepladder.train.user_code.user_code import UserCode

    settings = settings_of(options)
    own = options.model.samples() if isinstance(options.model, UserCode) else None
    source = own[0] if own else text_corpus(length=settings.sequence)
    found = measure_loaders(source, LOADERS, size=settings.batch)
    rows = list(progress(found, "loader settings", len(LOADERS)))
    cells = [
        [
            row.workers,
            row.batches_per_second,
            row.samples_per_second,
            row.first_batch_ms,
            row.problem,
        ]
        for row in rows
    ]
    columns = ["workers", "batches/s", "samples/s", "first batch ms", "note"]
    panels = {"samples a second": column(cells, 2), "first batch, ms": column(cells, 3)}
    return show(options, "Loading", columns, cells, panels, rows)


def bench_kernels(options: argparse.Namespace) -> int:
    from stepladder.bench import measure_kernels
    from stepladder.bench.kernel_timings import CASES

    rows = list(progress(measure_kernels(CASES), "kernels", len(CASES)))
    cells = [
        [row.kernel, "x".join(map(str, row.shape)), row.eager_ms, row.compiled_ms, row.ours_ms,
         ratio(row.eager_ms, row.ours_ms), ratio(row.compiled_ms, row.ours_ms), row.max_error,
         row.problem]
        for row in rows
    ]  # fmt: skip
    columns = ["kernel", "shape", "eager ms", "compiled ms", "ours ms", "vs eager", "vs compiled",
               "error", "note"]  # fmt: skip
    panels = {"faster than eager": column(cells, 5), "faster than compiled": column(cells, 6)}
    return show(options, "Kernels", columns, cells, panels, rows)


def show(
    options: argparse.Namespace,
    title: str,
    columns: list[str],
    cells: list[list[Any]],
    panels: dict[str, list[Any]],
    rows: list[Any],
) -> int:
    """The table in the form asked for; 1 where not a single row could be measured."""
    if options.plot:
        plot_bars(options.plot, [row[0] for row in cells], panels, columns[0])
    if options.json:
        as_json([asdict(row) for row in rows])
    else:
        from stepladder.bench import device_name

        settings = settings_of(options)
        where = f"{settings.model}, batch {settings.batch}, on {device_name(options.device)}"
        table(f"{title}: {where}", columns, cells)
    return 0 if any(not row[-1] or row[1] for row in cells) else 1


def ratio(above: float | None, below: float | None) -> float | None:
    return above / below if above and below else None


def relative(reference: float | None, value: float | None) -> float | None:
    return abs(value - reference) / abs(reference) if reference and value is not None else None


def column(cells: list[list[Any]], index: int) -> list[Any]:
    return [row[index] for row in cells]
