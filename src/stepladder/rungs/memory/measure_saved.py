"""The bytes that each block saves for backward, measured in one forward pass.

A forward on a sample is enough, on real or fake tensors: autograd names every tensor it saves, and
a dispatch mode sees the results that selective checkpointing would save. A storage counts once, for
the first block that saves it; parameters and buffers do not count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from stepladder.model import worth_saving
from stepladder.seam.dispatch import DispatchMode
from stepladder.seam.pytree import tree_leaves
from stepladder.seam.storages import storage_id

from .recompute_budget import BlockCost


def measure_blocks(
    blocks: Sequence[tuple[str, nn.Module]], forward: Callable[[], Any]
) -> tuple[BlockCost, ...]:
    """The bytes each block saves when `forward` runs the model once.

    The blocks must not be checkpointed yet, or nothing is saved.
    """
    savings = [BlockSavings() for _ in blocks]
    with ExitStack() as stack:
        for (_, block), saving in zip(blocks, savings):
            enter = block.register_forward_pre_hook(partial(begin, saving), with_kwargs=True)
            leave = block.register_forward_hook(partial(end, saving), always_call=True)
            stack.callback(enter.remove)
            stack.callback(leave.remove)
        with torch.enable_grad():
            forward()
    seen: set[int] = set()
    return tuple(saving.cost(seen) for saving in savings)


class BlockSavings(DispatchMode):
    """The tensors a block reads and saves, kept alive so that no address is reused."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs: list[Tensor] = []
        self.saved: list[Tensor] = []
        self.costly: list[Tensor] = []
        self.owned: set[int] = set()  # storages of parameters and buffers
        self.open = ExitStack()

    def __torch_dispatch__(
        self, op: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = op(*args, **(kwargs or {}))
        if worth_saving(op, args, kwargs or {}):
            self.costly += tensors_in(result)
        return result

    def keep(self, tensor: Tensor) -> Tensor:
        # Detached: a result that its own graph holds would never be freed.
        self.saved.append(tensor.detach())
        return self.saved[-1]

    def cost(self, seen: set[int]) -> BlockCost:
        known = seen | self.owned
        inputs = storages(self.inputs, known)
        costly = {**inputs, **storages(self.costly, known)}
        saved = storages(self.saved, known)
        seen |= saved.keys() | inputs.keys()
        return BlockCost(sum(saved.values()), sum(costly.values()), sum(inputs.values()))


def begin(saving: BlockSavings, block: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
    owned = [*block.parameters(), *block.buffers()]
    saving.owned |= storages(owned, set()).keys()
    saving.inputs += tensors_in((args, kwargs))
    saving.open.enter_context(saved_tensors_hooks(saving.keep, lambda kept: kept))
    saving.open.enter_context(saving)


def end(saving: BlockSavings, *_: Any) -> None:
    saving.open.close()


def tensors_in(tree: Any) -> list[Tensor]:
    return [leaf.detach() for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def storages(tensors: Sequence[Tensor], known: set[int]) -> dict[int, int]:
    """Bytes by storage, leaving out the known ones."""
    found = [tensor.untyped_storage() for tensor in tensors]
    return {key: s.nbytes() for s in found if (key := storage_id(s)) not in known}
