"""Measure the tables people quote, on this machine.

precision: time, speed-up, memory and loss difference of each number format. batch: memory and
throughput of each batch size, the best marked. recompute: memory and time of each way to
recompute. data: how fast batches arrive under each loader setting. kernels: hand-written kernels
against eager and compiled torch (needs a GPU). collectives: latency and bandwidth of every
collective over local ranks, or of those a --plan uses. ring: an all-reduce on sends and receives
alone against the backend's, its bytes counted, its steps drawn. dp: threads in one process against
DDP. zero: what a rank holds under DDP and ZeRO 1, 2, 3 beside theory. scaling: efficiency from one
rank to several, strong and weak. accumulation: one batch in more and more micro-batches.
compression: smaller gradients over links of several speeds (root, to make the links).
pipeline: the schedules on local ranks, idle time beside the formula's, the timeline drawn.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from stepladder.cli.results.communication_tables import bench_collectives, bench_dp, bench_ring
from stepladder.cli.results.pipeline_tables import bench_pipeline
from stepladder.cli.results.plots import plot_bars
from stepladder.cli.results.sharding_tables import (
    bench_accumulation,
    bench_compression,
    bench_scaling,
    bench_zero,
)
from stepladder.cli.results.tables import as_json, progress, table
from stepladder.cli.user_code_options import (
    MODEL,
    announce,
    configure_user_code,
    read_user_code,
)
from stepladder.errors import StepladderError
from stepladder.plan.reference import Reference
from stepladder.workload.shape import FAMILIES

if TYPE_CHECKING:
    from stepladder.bench.plan_tables import TableSettings
    from stepladder.train.user_code.user_code import UserCode

LOADERS = ("0", "1", "2", "4", "auto")
TRAINED = ("precision", "batch", "recompute")
SHARED = ("zero", "scaling", "accumulation")
OWN = (*TRAINED, "data", *SHARED)
READERS = {
    "data": OWN,
    "sample": OWN,
    "loss": (*TRAINED, *SHARED),
    "model": (*TRAINED, "data", "dp", *SHARED, "compression"),
    "batch": (*TRAINED, "data", "dp", "pipeline", *SHARED, "compression"),
    "sequence": (*TRAINED, "data", "dp", *SHARED, "compression"),
    "plan": (*TRAINED, "collectives", *SHARED),
    "ranks": ("collectives", "ring", "dp", "pipeline", "zero", "scaling"),
    "largest": ("collectives", "ring"),
    "keep": ("collectives",),
}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", choices=list(TABLES), help="which table")
    parser.add_argument(
        "model", nargs="?", metavar="MODEL", help=f"gpt-tiny on a CPU, gpt2 on a GPU; {MODEL}"
    )
    configure_user_code(parser)
    parser.add_argument("--batch", type=positive, help="samples a step (batch: the largest tried)")
    parser.add_argument("--sequence", type=positive, help="tokens a sample")
    parser.add_argument("--plan", default="", metavar="WORDS", help="what every row has in common")
    parser.add_argument("--steps", type=positive, default=10, help="timed steps a row")
    parser.add_argument("--ranks", type=positive, help="local processes (2)")
    parser.add_argument(
        "--largest", type=positive, metavar="KIB", help="message: collectives, ring (65536)"
    )
    parser.add_argument(
        "--keep", action="store_true", help="let forecasts use the measured link: collectives"
    )
    parser.add_argument("--device", default="auto")
    parser.add_argument("--plot", metavar="FILE.png", help="draw the table too")
    parser.add_argument("--json", action="store_true")


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a number of 1 or more")
    return number


def run(options: argparse.Namespace) -> int:
    refuse_unread(options)
    options.model = read_model(options)
    return TABLES[options.name](options)


def read_model(options: argparse.Namespace) -> UserCode | str | None:
    """The model's name, or the user's own code."""
    own = Reference.parse(options.model or "", taken=FAMILIES) is not None
    if own and options.name not in OWN:
        problem = f"the table '{options.name}' trains no model of your own"
        raise StepladderError("model", problem, f"Name a preset; these do: {', '.join(OWN)}.")
    if not (own or options.data or options.sample or options.loss):
        return options.model
    named = read_user_code(options, options.model or "gpt-tiny")
    code = named.complete(loss=options.name != "data")
    announce(code.taken)
    return code


def refuse_unread(options: argparse.Namespace) -> None:
    """An option that the table would not read is a mistake about what is measured."""
    for option, readers in READERS.items():
        if getattr(options, option) and options.name not in readers:
            raise StepladderError(
                option if option == "model" else f"--{option}",
                f"the table '{options.name}' does not read it",
                f"Leave it out; these do: {', '.join(readers)}.",
            )


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


TABLES: dict[str, Callable[[argparse.Namespace], int]] = {
    "precision": bench_precision,
    "batch": bench_batch,
    "recompute": bench_recompute,
    "data": bench_data,
    "kernels": bench_kernels,
    "collectives": bench_collectives,
    "ring": bench_ring,
    "dp": bench_dp,
    "zero": bench_zero,
    "scaling": bench_scaling,
    "accumulation": bench_accumulation,
    "compression": bench_compression,
    "pipeline": bench_pipeline,
}


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
        plot_bars(options.plot, [row[0] for row in cells], panels)
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
