"""The tables of `stepladder bench` about loss curves: learning rates, compressed gradients."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

from stepladder.cli.results.tables import as_json, progress, table
from stepladder.plan import Optimizer, Plan

from .curve_plots import plot_compression, plot_rates

if TYPE_CHECKING:
    from stepladder.bench.loss_curves.compression_curves import CompressionCurve
    from stepladder.bench.loss_curves.learning_rates import RateCurve

    Curve = TypeVar("Curve", RateCurve, CompressionCurve)

SMALL_GPT = "gpt:layers=2,hidden=64,heads=2,vocab=256"  # which learns to spell within a minute
BASE_BATCH, TIMES, SEQUENCE = 4, 8, 64
COMPRESSED_BATCH, RANKS, SEEDS = 8, 2, 3


def bench_learning_rate(options: argparse.Namespace) -> int:
    """Loss of a larger batch at each rule's rate, against the base batch over the same samples."""
    from stepladder.bench import make_workload
    from stepladder.bench.loss_curves.learning_rates import (
        OPTIMIZERS,
        learning_rate_cases,
        measure_learning_rates,
    )

    base, times = options.batch or BASE_BATCH, options.times or TIMES
    seeds = options.seeds or SEEDS
    plan = Plan.parse(options.plan or "fp32")  # a wrong word is said before anything is loaded
    optimizers = [options.optimizer] if options.optimizer else OPTIMIZERS
    cases = learning_rate_cases(optimizers, base, times, options.steps)
    work = make_workload(
        options.model or SMALL_GPT, batch=base * times, sequence=options.sequence or SEQUENCE,
        num_batches=options.steps, device=options.device,
    )  # fmt: skip
    found = measure_learning_rates(work, cases, plan, seeds)
    rows = list(progress(found, "trainings", len(cases) * seeds))
    grouped = by_case(rows)
    if options.plot:
        plot_rates(options.plot, grouped)
    if options.json:
        as_json([{**asdict(row), "lr": row.case.lr} for row in rows])
    else:
        samples = options.steps * base * times
        show_rates(
            f"Learning rate of a batch {times} times as large: {work.name}, {samples:,} samples "
            f"once, {in_seeds(seeds)}",
            grouped,
        )
    return 0 if any(row.final is not None for row in rows) else 1


def show_rates(title: str, grouped: Sequence[Sequence[RateCurve]]) -> None:
    columns = ["optimizer", "batch", "rule", "warm-up steps", "rate", "steps", "last loss",
               "over the base batch", "note"]  # fmt: skip
    cells = []
    for curves in grouped:
        case = curves[0].case
        over = spread(over_base(curves, grouped)) if case.rule != "base" else ""
        cells.append([
            case.optimizer, case.batch, case.rule, case.warmup, case.lr,
            max(len(curve.losses) for curve in curves), mean_final(curves), over, note(curves),
        ])  # fmt: skip
    table(title, columns, cells)
    for words in dict.fromkeys(curves[0].case.optimizer for curves in grouped):
        print(best_rule([curves for curves in grouped if curves[0].case.optimizer == words]))


def over_base(
    curves: Sequence[RateCurve], grouped: Sequence[Sequence[RateCurve]]
) -> list[float] | None:
    optimizer = curves[0].case.optimizer
    bases = (each for each in grouped if each[0].case.rule == "base")
    return above(curves, next(each for each in bases if each[0].case.optimizer == optimizer))


def best_rule(grouped: Sequence[Sequence[RateCurve]]) -> str:
    """The rule that came nearest to the base batch and whether warm-up helped, in a sentence."""
    base, *others = grouped
    name = base[0].case.optimizer
    ended = [curves for curves in others if mean_final(curves) is not None]
    if mean_final(base) is None or not ended:
        return f"{name}: too high a rate to compare; lower it with --optimizer."
    best = min(ended, key=lambda curves: mean_final(curves) or 0.0)
    firsts = sum(
        row.final == min(curves[seed].final or 0.0 for curves in ended)
        for seed, row in enumerate(best)
    )
    found = above(best, base) or [0.0]
    return (
        f"{name}: of batch {best[0].case.batch}, {best[0].case.name} ends lowest, "
        f"{signed(statistics.fmean(found))} over the base batch; it is lowest in "
        f"{firsts} of {in_seeds(len(best))}. {warmup_verdict(others)}"
    )


def warmup_verdict(others: Sequence[Sequence[RateCurve]]) -> str:
    """In how many of all pairs of a rule and a seed the warm-up lowered the last loss."""
    pairs = [
        (curve, other)
        for cold in others if not cold[0].case.warmup
        for warm in others if warm[0].case.warmup and warm[0].case.rule == cold[0].case.rule
        for curve, other in zip(cold, warm)
    ]  # fmt: skip
    helped = sum(
        warm.final is not None and (cold.final is None or warm.final < cold.final)
        for cold, warm in pairs
    )
    return f"Warm-up lowered the last loss in {helped} of {len(pairs)} trainings."


def bench_compression_curves(options: argparse.Namespace) -> int:
    """Loss curves under each compression, over the same batches; 1 where none came to its end."""
    from stepladder.bench import make_workload
    from stepladder.bench.loss_curves.compression_curves import (
        CASES,
        OPTIMIZER,
        measure_compression_curves,
    )
    from stepladder.launch import Ranks

    ranks, optimizer = options.ranks or RANKS, options.optimizer or OPTIMIZER
    seeds = options.seeds or SEEDS
    Optimizer.parse(optimizer)  # a wrong one is said before any rank starts
    work = make_workload(
        options.model or SMALL_GPT, batch=options.batch or COMPRESSED_BATCH,
        sequence=options.sequence or SEQUENCE, num_batches=options.steps, device=options.device,
    )  # fmt: skip
    with Ranks(ranks) as pool:
        found = measure_compression_curves(pool, work, optimizer=optimizer, seeds=seeds)
        rows = list(progress(found, "trainings", len(CASES) * seeds))
    grouped = by_case(rows)
    if options.plot:
        plot_compression(options.plot, grouped)
    if options.json:
        as_json([asdict(row) for row in rows])
    else:
        show_compression(
            f"Compressed gradients: {work.name}, DDP on {ranks} ranks, {options.steps} steps of "
            f"{optimizer}, {in_seeds(seeds)}",
            grouped,
        )
    return 0 if any(row.final is not None for row in rows) else 1


def show_compression(title: str, grouped: Sequence[Sequence[CompressionCurve]]) -> None:
    columns = ["compress", "error feedback", "KiB a step", "times smaller", "last loss",
               "over uncompressed", "note"]  # fmt: skip
    whole = grouped[0]
    cells = []
    for curves in grouped:
        first = curves[0]
        thin = first.case.compress.startswith("powersgd")
        feedback = ("on" if first.case.error_feedback else "off") if thin else ""
        over = spread(above(curves, whole)) if curves is not whole else ""
        ratio = whole[0].step_bytes / first.step_bytes
        cells.append([first.case.compress, feedback, first.step_bytes / 1024, ratio,
                      mean_final(curves), over, note(curves)])  # fmt: skip
    table(title, columns, cells)
    for lossy in (curves for curves in grouped if not curves[0].case.error_feedback):
        print(feedback_verdict(lossy, grouped))


def feedback_verdict(
    lossy: Sequence[CompressionCurve], grouped: Sequence[Sequence[CompressionCurve]]
) -> str:
    """What a compression loses without its error feedback, in a sentence."""
    compress = lossy[0].case.compress
    fed = next(
        curves
        for curves in grouped
        if curves[0].case.error_feedback and curves[0].case.compress == compress
    )
    found = above(lossy, fed)
    if found is None:
        return f"{compress}: a training broke off, so error feedback cannot be judged."
    higher = sum(each > 0 for each in found)
    mean = statistics.fmean(found)
    said = (
        f"{compress}: without error feedback the last loss is {abs(mean):.3f} "
        f"{'lower' if mean < 0 else 'higher'} on average, higher in {higher} of "
        f"{in_seeds(len(found))}"
    )
    if 0 < higher < len(found):
        return f"{said}: they disagree, so no difference is shown."
    return f"{said}."


def by_case(rows: Iterable[Curve]) -> list[list[Curve]]:
    """The curves of each case, by seed."""
    grouped: dict[Any, list[Curve]] = {}
    for row in rows:
        grouped.setdefault(row.case, []).append(row)
    return list(grouped.values())


def above(curves: Sequence[Curve], reference: Sequence[Curve]) -> list[float] | None:
    from stepladder.bench.loss_curves.final_loss import differences

    return differences([row.final for row in curves], [row.final for row in reference])


def mean_final(curves: Sequence[Curve]) -> float | None:
    finals = [row.final for row in curves if row.final is not None]
    return statistics.fmean(finals) if len(finals) == len(curves) else None


def spread(found: Sequence[float] | None) -> str:
    """The mean of the seeds' differences, and from which to which they go."""
    if found is None:
        return ""
    mean = signed(statistics.fmean(found))
    return mean if len(found) == 1 else f"{mean} ({signed(min(found))} to {signed(max(found))})"


def signed(number: float) -> str:
    """Nothing is 0.000, and neither more nor less."""
    text = f"{number:+.3f}"
    return "0.000" if text[1:] == "0.000" else text


def note(curves: Sequence[Curve]) -> str:
    return next((row.problem for row in curves if row.problem), "")


def in_seeds(count: int) -> str:
    return "1 seed" if count == 1 else f"{count} seeds"
