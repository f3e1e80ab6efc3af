"""Which curves a report has, in which unit, and what is left out because it would say nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .tables import size

GIB, MIB = 2**30, 2**20
SMALLER = {"s": ("ms", 1e3), "GiB": ("MiB", 1024.0)}
Window = dict[str, Any]


@dataclass(frozen=True)
class Curve:
    kind: str  # of the journal's entries
    column: str
    label: str
    scale: float = 1.0


PICTURES: dict[str, tuple[str, str, tuple[Curve, ...]]] = {
    "loss": ("Loss", "loss",
             (Curve("step", "loss", "training"), Curve("evaluation", "loss", "validation"))),
    "gradient-norm": ("Gradient norm", "gradient norm",
                      (Curve("step", "grad_norm", "gradient norm"),)),
    "learning-rate": ("Learning rate", "learning rate", (Curve("step", "lr", "learning rate"),)),
    "loss-scale": ("Loss scale", "loss scale", (Curve("step", "loss_scale", "loss scale"),)),
    "expert-load": ("Busiest expert", "times an even share",
                    (Curve("step", "expert_load", "of the worst layer"),)),
    "dead-experts": ("Dead experts", "experts",
                     (Curve("step", "dead_experts", "no token chose them"),)),
    "throughput": ("Throughput", "{unit}/s",
                   (Curve("step", "tokens_per_second", "throughput"),)),
    "mfu": ("Share of the peak", "%",
            (Curve("step", "mfu", "MFU", 100), Curve("step", "hfu", "with recomputation", 100))),
    "step-time": ("Step time and data wait", "s",
                  (Curve("step", "seconds", "step"),
                   Curve("step", "data_seconds", "waiting for data"))),
    "ranks": ("Ranks: own time", "s",
              (Curve("ranks", "slowest", "slowest"), Curve("ranks", "mean", "mean"),
               Curve("ranks", "quickest", "quickest"))),
    "memory": ("Peak memory", "GiB", (Curve("step", "memory_bytes", "fullest rank", 1 / GIB),)),
    "utilisation": ("Device utilisation", "%", (Curve("device", "utilisation", "device", 100),)),
    "temperature": ("Device temperature", "°C", (Curve("device", "temperature_c", "device"),)),
    "power": ("Device power", "W", (Curve("device", "power_w", "device"),)),
}  # fmt: skip


FROM_ZERO = {"learning-rate", "throughput", "mfu", "step-time", "ranks", "memory", "utilisation",
             "power"}  # fmt: skip


def curve_is_known(window: Window, curve: Curve) -> bool:
    """A device that was read once has no curve yet."""
    least = 2 if curve.kind == "device" else 1
    return curve.column in window["columns"] and len(window["steps"]) >= least


def smaller(unit: str, windows: dict[str, Window], curves: Sequence[Curve]) -> tuple[str, float]:
    """ms for s, and MiB for GiB, where none of the values reaches one; and how many are in one."""
    name, gap, rest = unit.partition(" ")
    if name not in SMALLER or highest(windows, curves) >= 1:
        return unit, 1.0
    least, many = SMALLER[name]
    return least + gap + rest, many


def highest(windows: dict[str, Window], curves: Sequence[Curve]) -> float:
    columns = [(windows[one.kind]["columns"][one.column], one.scale) for one in curves]
    values = [
        value * scale
        for column, scale in columns
        for value in column.get("high", column["mean"])
        if value is not None
    ]
    return max(values, default=0.0)


def without_context(owners: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Without what a process takes before it trains, where nothing else could be seen beside it."""
    newest = {owner: column["mean"][-1] or 0 for owner, column in owners.items()}
    context = newest.pop("context", 0)
    if not newest or context <= sum(newest.values()):
        return owners, "Memory by owner"
    rest = {owner: column for owner, column in owners.items() if owner != "context"}
    return rest, f"Memory by owner, and {size(context)} of context, which is not drawn"
