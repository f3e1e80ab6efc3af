"""How fast a run was: medians over its reports."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stepladder.record import Report

MOST = 10_000  # reports that a run keeps in memory; its journal has them all


@dataclass(frozen=True, slots=True)
class RunSpeed:
    """Medians over the steady reports, and the memory peak; None for what was not measured."""

    tokens_per_second: float | None = None
    flops_per_second: float | None = None
    mfu: float | None = None
    hfu: float | None = None
    peak_memory_bytes: int | None = None

    @classmethod
    def of(cls, reports: Sequence[Report]) -> RunSpeed:
        steady = reports[1:] or reports  # the first report holds the warm-up
        return cls(
            tokens_per_second=median([report.tokens_per_second for report in steady]),
            flops_per_second=median([r.flops_per_second for r in steady if r.flops_per_second]),
            mfu=median([report.mfu for report in steady if report.mfu is not None]),
            hfu=median([report.hfu for report in steady if report.hfu is not None]),
            peak_memory_bytes=reports[-1].memory_bytes if reports else None,
        )

    def figures(self) -> dict[str, Any]:
        """Named as they are displayed."""
        flops, peak = self.flops_per_second, self.peak_memory_bytes
        return {
            "tokens/s (median)": self.tokens_per_second,
            "TFLOP/s (median)": None if flops is None else flops / 1e12,
            "MFU (median)": self.mfu,
            "HFU (median)": self.hfu,
            "peak memory GiB": None if peak is None else round(peak / 2**30, 3),
        }


def median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def thin(items: list[Any], most: int = MOST) -> None:
    """Halve a list that has grown too long for memory; the first and the last item stay."""
    if len(items) > most:
        del items[1:-1:2]
