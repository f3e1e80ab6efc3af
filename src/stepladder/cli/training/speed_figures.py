"""A run's closing figures: what its reports came to."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from stepladder.record import Report

MOST = 10_000  # reports that a run keeps at hand; its journal has them all


def speed_figures(reports: Sequence[Report]) -> dict[str, Any]:
    """Medians over the steady reports, and the peak; None for what was not measured."""
    steady = reports[1:] or reports  # the first report holds the warm-up
    rates = [report.flops_per_second for report in steady if report.flops_per_second]
    return {
        "tokens/s (median)": median([report.tokens_per_second for report in steady]),
        "TFLOP/s (median)": statistics.median(rates) / 1e12 if rates else None,
        "MFU (median)": median([report.mfu for report in steady if report.mfu is not None]),
        "HFU (median)": median([report.hfu for report in steady if report.hfu is not None]),
        "peak memory GiB": round(reports[-1].memory_bytes / 2**30, 3) if reports else None,
    }


def median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def thin(items: list[Any], most: int = MOST) -> None:
    """Keep a list that only grows from filling memory: every second goes, but first and last."""
    if len(items) > most:
        del items[1:-1:2]
