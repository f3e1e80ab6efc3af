"""Pictures of trainings side by side: the mean loss over the seeds, a line a setting."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from stepladder.cli.results.plot_axes import count_whole, mark_thousands
from stepladder.cli.results.plots import figure, place_legend, store
from stepladder.palette import REFERENCE, series_colours

if TYPE_CHECKING:
    from stepladder.bench.loss_curves.compression_curves import CompressionCurve
    from stepladder.bench.loss_curves.learning_rates import RateCurve

POINTS = 25  # of a drawn curve: each is a mean over the losses in between
HEADROOM = 1.1  # over the first losses: a training that diverges leaves the picture


def plot_rates(path: str, cases: Sequence[Sequence[RateCurve]]) -> None:
    store(draw_rates(cases), path)


def draw_rates(cases: Sequence[Sequence[RateCurve]]) -> Any:
    """A panel an optimizer; a colour a rule, dashed without warm-up, the base batch black."""
    words = list(dict.fromkeys(curves[0].case.optimizer for curves in cases))
    drawn, axes = figure(8.0 * len(words), 4.2, panels=len(words))
    rules = dict.fromkeys(curves[0].case.rule for curves in cases)
    scaled = [rule for rule in rules if rule != "base"]
    colours = dict(zip(scaled, series_colours(len(scaled)))) | {"base": REFERENCE}
    for axis, optimizer in zip([axes] if len(words) == 1 else axes, words):
        some = [curves for curves in cases if curves[0].case.optimizer == optimizer]
        for curves in some:
            case = curves[0].case
            losses = mean_curve(curves)
            axis.plot(
                *smoothed(curves[0].samples, losses), color=colours[case.rule],
                linestyle="-" if case.warmup or case.rule == "base" else "--", linewidth=1.3,
                label=f"batch {case.batch}: {case.name}, rate {case.lr:.3g}{broken(curves)}",
            )  # fmt: skip
        finish(axis, "samples seen", some, optimizer)
    return drawn


def plot_compression(path: str, cases: Sequence[Sequence[CompressionCurve]]) -> None:
    store(draw_compression(cases), path)


def draw_compression(cases: Sequence[Sequence[CompressionCurve]]) -> Any:
    """A colour a compression, dashed without error feedback; uncompressed black."""
    drawn, axes = figure(8.5, 4.2)
    ways = dict.fromkeys(curves[0].case.compress for curves in cases)
    smaller = [way for way in ways if way != "none"]
    colours = dict(zip(smaller, series_colours(len(smaller)))) | {"none": REFERENCE}
    for curves in cases:
        case = curves[0].case
        losses = mean_curve(curves)
        axes.plot(
            *smoothed(range(len(losses)), losses), color=colours[case.compress],
            linestyle="-" if case.error_feedback else "--", label=case.name + broken(curves),
            linewidth=3.5 if case.compress == "none" else 1.3,  # what lies on it shows it still
        )  # fmt: skip
    finish(axes, "step", cases, "")
    return drawn


def broken(curves: Iterable[Any]) -> str:
    return next((f", {curve.problem}" for curve in curves if curve.problem), "")


def finish(axes: Any, across: str, cases: Sequence[Sequence[Any]], title: str) -> None:
    """Names, whole numbers, and no more height than trainings that learn have use for."""
    seeds = len(cases[0])
    losses = "loss" if seeds == 1 else f"loss, mean of {seeds} seeds"
    axes.set(xlabel=across, ylabel=losses, title=title)
    known = [curve.losses[0] for curves in cases for curve in curves if curve.losses]
    axes.set_ylim(top=min(axes.get_ylim()[1], HEADROOM * max(known)))
    count_whole(axes.xaxis)
    mark_thousands(axes.xaxis, axes.get_xlim()[1])
    place_legend(axes)


def mean_curve(curves: Sequence[Any]) -> list[float]:
    """By step, the mean over all seeds; it ends where the first of them broke off."""
    return [sum(losses) / len(losses) for losses in zip(*(curve.losses for curve in curves))]


def smoothed(across: Sequence[int], losses: Sequence[float]) -> tuple[list[float], list[float]]:
    """Means over stretches of a curve: single losses are those of single batches."""
    width = max(1, len(losses) // POINTS)
    parts = [slice(at, at + width) for at in range(0, len(losses), width)]
    return means(across[: len(losses)], parts), means(losses, parts)


def means(values: Sequence[float], parts: Sequence[slice]) -> list[float]:
    return [sum(values[part]) / len(values[part]) for part in parts]
