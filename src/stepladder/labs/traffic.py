"""What ranks say to each other, counted: every collective of torch.distributed inside a block."""

from __future__ import annotations

from collections import Counter
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

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


class Traffic(TorchDispatchMode):
    """Context that counts collectives, and the bytes of the whole tensor each one moved."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = NAMES.get(op._opname) if op.namespace == "c10d" else None
        if name:
            self.calls[name] += 1
            self.bytes[name] += max(size(argument) for argument in args)
        return op(*args, **(kwargs or {}))


def size(argument: Any) -> int:
    """Of a tensor, or of a list of pieces."""
    return sum(leaf.nbytes for leaf in tree_leaves(argument) if isinstance(leaf, Tensor))
