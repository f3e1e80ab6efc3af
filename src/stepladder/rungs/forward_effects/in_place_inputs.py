"""Blocks that write in place to what they are given.

Activation checkpointing needs a block's input again as it was, and FSDP2 hands a block a view that
autograd lets nobody write to. Such a block gets a copy, and the caller's tensor is then written as
the block wrote the copy. Whether a block writes shows in its first training pass; blocks that do
not are given no copies after it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from stepladder.seam.pytree import tree_leaves, tree_map
from stepladder.seam.storages import version_of

WRITES: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()  # by block, once it is known


def may_write(block: nn.Module) -> bool:
    return WRITES.get(block, True)


def checkpoint_on_copies(
    block: nn.Module, checkpointed: Callable[..., Any], call: Callable[..., Any], values: Any
) -> Any:
    """Checkpoint a call that may write to its arguments.

    Args:
        checkpointed: called with a function and its arguments, which it saves for backward.
    """
    given = [value for value in values if needs_gradient(value)]
    flows = [needs_gradient(value) for value in values]  # masks and the like are shared by blocks

    def on_copies(*kept: Any) -> Any:
        own = copies(kept, flows)
        return call(*own), [value for value, flow in zip(own, flows) if flow]

    output, own = checkpointed(on_copies, *copies(values, flows))
    write_back(block, given, own)
    return output


def write_back(block: nn.Module, given: Sequence[Tensor], own: Sequence[Tensor]) -> None:
    """Give the caller's tensors what the block wrote to its copies."""
    written = [(theirs, mine) for theirs, mine in zip(given, own) if version_of(mine) > 0]
    WRITES[block] = bool(written) or WRITES.get(block, False)
    for theirs, mine in written:
        theirs.copy_(mine)


def copies(values: Sequence[Any], flows: Sequence[bool]) -> list[Any]:
    return [value.clone() if flow else value for value, flow in zip(values, flows)]


class CopiedInputs:
    """Hooks that give a sharded block copies of its inputs; remove themselves where it writes to
    none."""

    def __init__(self, block: nn.Module) -> None:
        self.given: list[Tensor] = []
        self.own: list[Tensor] = []
        self.handles = [
            # Before and after FSDP2's own, which puts its view in the place of the input.
            block.register_forward_pre_hook(self.remember, prepend=True, with_kwargs=True),
            block.register_forward_pre_hook(self.replace, with_kwargs=True),
            block.register_forward_hook(self.finish),
        ]

    def remember(self, block: nn.Module, args: Any, kwargs: Any) -> None:
        self.given = flowing((args, kwargs))

    def replace(self, block: nn.Module, args: Any, kwargs: Any) -> Any:
        self.own = []
        if not self.given:
            return None

        def own(leaf: Any) -> Any:
            if not needs_gradient(leaf):
                return leaf
            self.own.append(leaf.clone())
            return self.own[-1]

        return tree_map(own, (args, kwargs))

    def finish(self, block: nn.Module, args: Any, output: Any) -> None:
        if not self.own:
            return
        write_back(block, self.given, self.own)
        self.given, self.own = [], []
        if not may_write(block):
            for handle in self.handles:
                handle.remove()


def flowing(values: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if needs_gradient(leaf)]


def needs_gradient(leaf: Any) -> bool:
    """Whether a tensor was computed and needs gradients: autograd lets nobody write to a leaf."""
    return torch.is_grad_enabled() and isinstance(leaf, Tensor) and leaf.grad_fn is not None
