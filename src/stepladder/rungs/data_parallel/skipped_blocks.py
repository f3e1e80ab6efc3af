"""Blocks that a rank skips while others run them, under ZeRO 2 and 3.

Gathering a block's parameters and reducing its gradients takes every rank. Where a module decides
by its data which blocks run, a rank that skipped some would wait in another collective than the
rest. So it runs them as well, on what the next block is given, and adds nothing of the result: the
gradients that it contributes are zeros. A rank that runs none of the blocks in a pass runs them on
zeros, in the shapes of what a block was last given; before it knows any, it gathers them and runs
nothing.

That its result is a part of the graph must not show in the inputs of other blocks: FSDP2 reduces a
block's gradients when those of its inputs are there, or, where no input needs any, at the end of
the backward pass, and all ranks must do so in one order. So where the next block's inputs need no
gradients, it is the module's output that the result is added to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from stepladder.seam.pytree import tree_leaves, tree_map

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class SkippedBlocks:
    """Follows which blocks a forward pass runs, and runs those that it leaves out."""

    def __init__(
        self,
        module: nn.Module,
        blocks: Sequence[nn.Module],
        skip: Callable[[nn.Module, bool], None],
    ) -> None:
        """Watch a module that is already sharded.

        Args:
            skip: called with a block and whether it only runs here because others run it.
        """
        self.blocks, self.skip = blocks, skip
        self.last = -1  # the block that ran last
        self.given: Arguments | None = None  # the arguments it had
        self.shapes: Any = None  # of those, in the last pass that ran a block
        self.owed: list[Tensor] = []  # zeros that no block's inputs could take
        self.inside = False
        # Before FSDP2's own hooks, which gather a block and finish the module's pass.
        module.register_forward_pre_hook(self.begin, prepend=True)
        module.register_forward_hook(self.end, prepend=True)
        for index, block in enumerate(blocks):
            enter = partial(self.enter, index)
            block.register_forward_pre_hook(enter, prepend=True, with_kwargs=True)

    def begin(self, module: nn.Module, args: Any) -> None:
        self.last, self.owed = -1, []

    def enter(self, index: int, block: nn.Module, args: Any, kwargs: Any) -> Any:
        if self.inside:
            return None
        if self.last < 0 and (self.shapes is None or torch.is_grad_enabled()):
            self.shapes = tree_map(Shape.of, (args, kwargs))
        skipped, self.last, self.given = range(self.last + 1, index), index, (args, kwargs)
        zeros = self.run(skipped, self.given)
        self.skip(block, False)
        if zeros and any(map(is_flowing, tree_leaves(self.given))):
            return add(self.given, zeros[-1])
        self.owed += zeros
        return None

    def end(self, module: nn.Module, args: Any, output: Any) -> Any:
        given, owed, skipped = self.given, self.owed, range(self.last + 1, len(self.blocks))
        if given is None and self.shapes is not None:
            given = tree_map(made_of, self.shapes)
        owed += self.touch(skipped) if given is None else self.run(skipped, given)
        # They hold the graph of this pass, which leads back to this module by nodes that Python's
        # search for garbage does not see: activations, module and process groups would stay.
        self.given, self.owed = None, []
        for zero in owed:
            output = add(output, zero)
        return output if owed else None

    def run(self, skipped: Sequence[int], given: Arguments) -> list[Tensor]:
        """Run blocks on the arguments of another; zeros, on which all that they did depends."""
        zeros: list[Tensor] = []
        flows = any(map(is_flowing, tree_leaves(given)))
        for index in skipped:
            block = self.blocks[index]
            self.skip(block, True)
            with self.alone(block):
                args, kwargs = add(given, zeros.pop()) if flows and zeros else given
                out = block(*args, **kwargs)
            found = [leaf for leaf in tree_leaves(out) if is_flowing(leaf)]
            zeros += [leaf.nan_to_num().sum() * 0 for leaf in found[:1]]
        return zeros

    def touch(self, skipped: Sequence[int]) -> list[Tensor]:
        """Have blocks gathered that never ran here, so that nobody knows what they take."""
        zero, flows = torch.zeros(()), torch.is_grad_enabled()
        for index in skipped:
            block = self.blocks[index]
            self.skip(block, True)
            with self.alone(block), forward_replaced(block, partial(zero_of, block)):
                zero = block(zero.requires_grad_() if flows and zero.is_leaf else zero)
        return [zero] if flows and skipped else []

    @contextmanager
    def alone(self, block: nn.Module) -> Iterator[None]:
        """A context in which a block changes no state of its own."""
        modes = [(part, part.training) for part in block.modules()]
        self.inside = True
        block.eval()
        try:
            yield
        finally:
            self.inside = False
            for part, training in modes:
                part.training = training


@contextmanager
def forward_replaced(block: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    before = vars(block).get("forward")
    vars(block)["forward"] = forward
    try:
        yield
    finally:
        del vars(block)["forward"]
        if before is not None:
            vars(block)["forward"] = before


def zero_of(block: nn.Module, zero: Tensor) -> Tensor:
    """Zero, which depends on every gathered parameter."""
    for parameter in block.parameters():
        if parameter.requires_grad and not isinstance(parameter, DTensor):
            zero = zero.to(parameter.device) + 0 * parameter.reshape(-1)[:1].sum()
    return zero


@dataclass(frozen=True, slots=True)
class Shape:
    """What is remembered of a tensor that a block was given."""

    size: torch.Size
    dtype: torch.dtype
    device: torch.device
    flows: bool

    @classmethod
    def of(cls, leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        # A pass without gradients cannot tell; what a block takes is mostly another's result.
        flows = leaf.is_floating_point() and (leaf.requires_grad or not torch.is_grad_enabled())
        return cls(leaf.shape, leaf.dtype, leaf.device, flows)


def made_of(leaf: Any) -> Any:
    if not isinstance(leaf, Shape):
        return leaf
    zeros = torch.zeros(leaf.size, dtype=leaf.dtype, device=leaf.device)
    return zeros.requires_grad_(leaf.flows and torch.is_grad_enabled())


def is_flowing(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.requires_grad


def add(values: Any, zero: Tensor) -> Any:
    """The same values, of which the first that needs gradients depends on `zero`."""
    if is_dataclass(values) and not isinstance(values, type) and not isinstance(values, dict):
        for field in fields(values):
            if is_flowing(getattr(values, field.name)):
                return replace(values, **{field.name: getattr(values, field.name) + zero})
        return values
    done: list[bool] = []

    def once(leaf: Any) -> Any:
        if done or not is_flowing(leaf):
            return leaf
        done.append(True)
        return leaf + zero.to(leaf.dtype)

    return tree_map(once, values)
