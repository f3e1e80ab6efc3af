"""Which results are dear: worth their bytes, because computing them again costs a product.

Selective recomputation keeps these, and whoever counts what it keeps asks the same question.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stepladder.seam.dispatch import argument_names
from stepladder.seam.operators import Operators

PRODUCTS = Operators(  # by a weight: as many FLOPs per byte as the block's input is wide
    (
        "aten.mm.default",
        "aten.addmm.default",
        "aten._scaled_mm.default",
        "aten._grouped_mm.default",
        "aten.convolution.default",
    )
)
# Of two activations, such as the scores.
BATCHED = Operators(("aten.bmm.default", "aten.baddbmm.default"))
TRAVELS = Operators(  # computing these again would use the network again
    (
        "_c10d_functional.all_reduce.default",
        "_c10d_functional.reduce_scatter_tensor.default",
        "_c10d_functional.all_to_all_single.default",
    )
)


def is_dear(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether an operation's result is worth its bytes."""
    if op in PRODUCTS or op in TRAVELS:
        return True
    if op in BATCHED:
        left, right = args[-2:]
        return (
            left.shape[-1] >= right.shape[-1]
        )  # contraction at least as long as the result is wide
    name = op.name()
    return ("attention" in name or "flash_attn" in name) and not draws(op, args, kwargs)


def draws(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether an attention drops out: kept, it would not draw its mask again, and every mask that
    the block draws after it would differ between forward and backward."""
    given = {**dict(zip(argument_names(op), args)), **kwargs}
    return any(bool(value) for name, value in given.items() if name.startswith("dropout"))
