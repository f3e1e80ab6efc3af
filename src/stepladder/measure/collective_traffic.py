"""What ranks say to each other, counted: every collective of torch.distributed inside a block.

A ring sends each of n parts of a tensor n - 1 times to gather it or to cut up its sum, and twice
that to add it up everywhere; a rank's share of that is (n - 1)/n of the tensor, or twice. A message
to one rank is sent whole.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from stepladder.seam.dispatch import DispatchMode, operator_name
from stepladder.seam.pytree import tree_leaves

NAMES = {
    "allreduce_": "all_reduce",
    "allreduce_coalesced_": "all_reduce",
    "_allgather_base_": "all_gather",
    "allgather_": "all_gather",
    "_reduce_scatter_base_": "reduce_scatter",
    "reduce_scatter_": "reduce_scatter",
    "broadcast_": "broadcast",
    "send": "send",
}
PARTS = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "broadcast": 1}


class Traffic(DispatchMode):
    """Context that counts collectives, the bytes of the whole tensors they were called with, and
    what a rank sends for them on a ring."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()
        self.sent_bytes = 0.0

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = NAMES.get(operator_name(op)) if op.namespace == "c10d" else None
        if name:
            self.calls[name] += 1
            self.bytes[name] += (whole := max(size(argument) for argument in args))
            others = ways(args) - 1
            ring = PARTS.get(name, 0) * others / (others + 1)
            self.sent_bytes += whole * (1 if name == "send" else ring)
        return op(*args, **(kwargs or {}))


def size(argument: Any) -> int:
    """Of a tensor, or of a list of pieces."""
    return sum(leaf.nbytes for leaf in tree_leaves(argument) if isinstance(leaf, Tensor))


def ways(args: Any) -> int:
    """How many ranks take part."""
    boxes = [leaf for leaf in tree_leaves(args) if isinstance(leaf, torch.ScriptObject)]
    return dist.ProcessGroup.unbox(boxes[0]).size()
