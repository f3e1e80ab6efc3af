"""The policy of selective activation checkpointing: which results are worth saving.

Those whose recomputation costs a matmul or a collective. The memory forecast uses the same policy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stepladder.seam.dispatch import argument_names
from stepladder.seam.operators import Operators

WEIGHT_MATMULS = Operators(  # as many FLOPs per byte of the result as the block's input is wide
    (
        "aten.mm.default",
        "aten.addmm.default",
        "aten._scaled_mm.default",
        "aten._grouped_mm.default",
        "aten.convolution.default",
    )
)
# Of activations, such as QKᵀ.
BATCHED_MATMULS = Operators(("aten.bmm.default", "aten.baddbmm.default"))
COLLECTIVES = Operators(  # recomputing these would use the network again
    (
        "_c10d_functional.all_reduce.default",
        "_c10d_functional.reduce_scatter_tensor.default",
        "_c10d_functional.all_to_all_single.default",
    )
)


def worth_saving(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether to save an operation's result rather than recompute it."""
    if op in WEIGHT_MATMULS or op in COLLECTIVES:
        return True
    if op in BATCHED_MATMULS:
        left, right = args[-2:]
        return left.shape[-1] >= right.shape[-1]  # the inner dimension is the result's or larger
    name = op.name()
    return ("attention" in name or "flash_attn" in name) and not has_dropout(op, args, kwargs)


def has_dropout(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether an attention uses dropout.

    If it were saved, recomputation would not draw its mask, and every later mask of the block would
    differ between forward and recomputation.
    """
    given = {**dict(zip(argument_names(op), args)), **kwargs}
    return any(bool(value) for name, value in given.items() if name.startswith("dropout"))
