"""Blocks that a rank skips while others run them, under ZeRO 2 and 3.

Gathering a block's parameters and reducing its gradients takes every rank. Where a module decides
by its data which blocks run, a rank that skipped some would wait in another collective than the
rest. So it runs them as well, on what the next block is given, and adds nothing of the result: the
gradients that it contributes are zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from functools import partial
from typing import Any

from torch import Tensor, nn

from stepladder.seam.pytree import tree_leaves, tree_map


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
        self.given: tuple[tuple[Any, ...], dict[str, Any]] | None = None  # the arguments it had
        self.inside = False
        # Before FSDP2's own hooks, which gather a block and finish the module's pass.
        module.register_forward_pre_hook(self.begin, prepend=True)
        module.register_forward_hook(self.end, prepend=True)
        for index, block in enumerate(blocks):
            enter = partial(self.enter, index)
            block.register_forward_pre_hook(enter, prepend=True, with_kwargs=True)

    def begin(self, module: nn.Module, args: Any) -> None:
        self.last = -1

    def enter(self, index: int, block: nn.Module, args: Any, kwargs: Any) -> Any:
        if self.inside:
            return None
        skipped, self.last, self.given = range(self.last + 1, index), index, (args, kwargs)
        zero = self.run(skipped) if skipped else None
        self.skip(block, False)
        return None if zero is None else add((args, kwargs), zero)

    def end(self, module: nn.Module, args: Any, output: Any) -> Any:
        skipped = range(self.last + 1, len(self.blocks))
        zero = self.run(skipped) if skipped and self.given is not None else None
        # They hold the graph of this pass, which leads back to this module by nodes that Python's
        # search for garbage does not see: activations, module and process groups would stay.
        self.given = None
        return None if zero is None else add(output, zero)

    def run(self, skipped: Sequence[int]) -> Tensor | None:
        """Run blocks on the arguments of another; zero, which depends on them."""
        assert self.given is not None
        (args, kwargs), zero = self.given, None
        for index in skipped:
            block = self.blocks[index]
            self.skip(block, True)
            with self.alone(block):
                out = block(*(args if zero is None else add(args, zero)), **kwargs)
            found = [leaf for leaf in tree_leaves(out) if is_flowing(leaf)]
            if found:
                zero = found[0].nan_to_num().sum() * 0
        return zero

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
