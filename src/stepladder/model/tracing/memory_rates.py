"""How fast a cheap operation's kernel goes through memory on a GPU.

Most stream: operands of one type, one element after another, as fast as memory allows. Rough ones
reach about half of that: they go by rows (norms, softmax, sums), across strides, from few elements
to many, or between types, where loads are narrow. Some go at a pace of their own, whatever an
element's bytes: norms over channels give each channel to one group of threads, group norms and
pools count indices for each element.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

ROWS = ("layer_norm", "rms_norm", "softmax", "sum", "mean", "cumsum", "embedding")
OWN = {"batch_norm": "channel", "group_norm": "group", "pool": "pool"}
ROUGH = "rough"


def pace_of(packet: Any, read: Sequence[Tensor], out: Sequence[Tensor]) -> tuple[str, int]:
    """The pace of an operation, and the channels that it works on side by side."""
    name = packet.__name__
    for word, pace in OWN.items():
        if word in name:
            return pace, read[0].shape[1] if pace == "channel" else 0
    return (ROUGH if is_rough(name, read, out) else ""), 0


def is_rough(name: str, read: Sequence[Tensor], out: Sequence[Tensor]) -> bool:
    if any(word in name for word in ROWS):
        return True
    before, after = (
        [t for t in side if t.is_floating_point() and t.numel() > 1] for side in (read, out)
    )
    seen = before + after
    if not seen:
        return False
    # Narrowing a stream costs nothing more; widening it, or working on two types, does.
    mixed = len({t.element_size() for t in before}) > 1
    widened = any(b.element_size() < a.element_size() for b in before for a in after)
    spread = len({t.numel() for t in seen}) > 1
    ordered = all(t.is_contiguous() for t in seen) or (
        len({t.stride() for t in seen}) == 1 and is_dense(seen[0])
    )
    return mixed or widened or spread or not ordered


def is_dense(tensor: Tensor) -> bool:
    """Whether elements follow each other without gaps, in whatever order of the dimensions."""
    reach = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape)):
        if size > 1 and stride != reach:
            return False
        reach *= size
    return True
