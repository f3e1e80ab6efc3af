"""Which of two values is better: the lower ("min") or the higher ("max")."""

from __future__ import annotations

import math
from typing import Any

from stepladder.checkpoint.best import MODES
from stepladder.errors import PlanError, nearest


def check_mode(mode: str) -> str:
    if mode not in MODES:
        problem = f"'{mode}' does not say which values are better"
        raise PlanError("mode", problem, nearest(str(mode), MODES))
    return mode


def read_value(value: Any) -> float:
    """A number or a tensor of one element, as an evaluation returns it."""
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError) as unable:
        problem = f"a {type(value).__name__} is not one number to compare"
        raise PlanError("value", problem, "Give a loss or a metric of run.evaluate.") from unable


def is_better(value: float, best: float | None, mode: str, min_delta: float = 0.0) -> bool:
    """Whether a value is better, by more than `min_delta`, than the best so far; NaN never is."""
    if best is None:
        return not math.isnan(value)
    return (best - value if mode == "min" else value - best) > min_delta
