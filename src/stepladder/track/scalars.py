"""The metrics of a journal entry, with the same names in every tracker."""

from __future__ import annotations

import math
from typing import Any

STEP = {
    "loss": "train/loss",
    "grad_norm": "train/grad_norm",
    "lr": "train/lr",
    "loss_scale": "train/loss_scale",
    "tokens_per_second": "speed/tokens_per_second",
    "flops_per_second": "speed/flops_per_second",
    "mfu": "speed/mfu",
    "hfu": "speed/hfu",
    "seconds": "speed/step_seconds",
    "data_seconds": "speed/data_seconds",
    "memory_bytes": "memory/peak_bytes",
    "expert_load": "experts/busiest_over_even",
    "dead_experts": "experts/dead",
}


def scalars(kind: str, entry: dict[str, Any]) -> dict[str, float]:
    """The finite numbers of an entry by metric name."""
    named: dict[str, Any] = {}
    if kind == "step":
        terms = as_table(entry.get("terms"))
        named = {name: entry.get(key) for key, name in STEP.items()}
        named |= {f"train/loss/{name}": value for name, value in terms.items()}
    elif kind == "evaluation":
        named = {"validation/loss": entry.get("loss")}
    elif kind == "logged":
        named = {str(entry.get("name")): entry.get("value")}
    elif kind == "device":
        named = {f"device/{key}": value for key, value in entry.items() if key != "step"}
    elif kind == "memory":
        named = {f"memory/{key}": value for key, value in as_table(entry.get("owners")).items()}
    elif kind == "collectives":
        named = {
            f"collectives/{key}": value for key, value in as_table(entry.get("seconds")).items()
        }
    elif kind == "ranks":
        own = [one for one in entry.get("own_seconds") or () if is_number(one)]
        if own:
            named = {"ranks/slowest_seconds": max(own), "ranks/mean_seconds": sum(own) / len(own)}
    return {name: float(value) for name, value in named.items() if is_number(value)}


def as_table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
