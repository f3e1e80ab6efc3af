"""How close a memory-bound operation's kernel comes to a GPU's memory bandwidth.

Most reach it: contiguous operands of one type. "Rough" ones reach about half: they work by rows
(norms, softmax, sums), with strides, with broadcasting, or between types, where loads are narrow.
Some have their own rate, whatever the element size: batch norms give each channel to one thread
block, group norms and pools compute indices for each element.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

ROW_OPERATIONS = ("layer_norm", "rms_norm", "softmax", "sum", "mean", "cumsum", "embedding")
OWN_RATE = {"batch_norm": "channel", "group_norm": "group", "pool": "pool"}
NON_STREAMING = "rough"


def memory_rate(packet: Any, read: Sequence[Tensor], out: Sequence[Tensor]) -> tuple[str, int]:
    """The kind of rate of an operation, and the channels it works on in parallel."""
    name = packet.__name__
    for word, rate in OWN_RATE.items():
        if word in name:
            return rate, read[0].shape[1] if rate == "channel" else 0
    return (NON_STREAMING if is_rough(name, read, out) else ""), 0


def is_rough(name: str, read: Sequence[Tensor], out: Sequence[Tensor]) -> bool:
    if any(word in name for word in ROW_OPERATIONS):
        return True
    before, after = (
        [t for t in side if t.is_floating_point() and t.numel() > 1] for side in (read, out)
    )
    seen = before + after
    if not seen:
        return False
    # Casting to a narrower type costs nothing more; casting to a wider, or mixing two types, does.
    mixed = len({t.element_size() for t in before}) > 1
    widened = any(b.element_size() < a.element_size() for b in before for a in after)
    spread = len({t.numel() for t in seen}) > 1
    ordered = all(t.is_contiguous() for t in seen) or (
        len({t.stride() for t in seen}) == 1 and is_dense(seen[0])
    )
    return mixed or widened or spread or not ordered


def is_dense(tensor: Tensor) -> bool:
    """Whether the elements are contiguous in some order of the dimensions."""
    reach = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape)):
        if size > 1 and stride != reach:
            return False
        reach *= size
    return True
