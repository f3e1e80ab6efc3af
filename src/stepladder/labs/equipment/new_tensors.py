"""The tensors that a block of code makes, seen from outside: however it is written."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from stepladder.seam.dispatch import DispatchMode
from stepladder.seam.pytree import tree_leaves
from stepladder.seam.storages import storage_id


class NewTensors(DispatchMode):
    """Context that notes the shape and the bytes of every result that is no view of an argument."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[tuple[tuple[int, ...], int]] = []

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = op(*args, **(kwargs or {}))
        there = {storage_id(t.untyped_storage()) for t in tensors((args, kwargs))}
        self.made += [
            (tuple(t.shape), t.nbytes)
            for t in tensors(result)
            if storage_id(t.untyped_storage()) not in there
        ]
        return result


def tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
