"""Answers for code that reads a number of a fake tensor.

The engine reads whether a step was bad, an optimizer how many steps it has taken, a module
something of its own. What was computed from comparisons is 0: nothing was bad. Any other number is
1. What is counted in the sample itself is not fake and needs no answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from weakref import ref

import torch
from torch import Tensor

from stepladder.seam.dispatch import DispatchMode, reads_numbers
from stepladder.seam.operators import Operators

FEW = 16  # numbers that verdicts are summed up in
COPIES = Operators(("aten._to_copy.default",))


def tensors_in(args: Any) -> Iterator[Tensor]:
    """An operation's tensors, and those of its lists."""
    for one in args:
        if isinstance(one, Tensor):
            yield one
        elif isinstance(one, list | tuple):
            yield from (each for each in one if isinstance(each, Tensor))


class FakeNumbers(DispatchMode):
    """A block in which fake tensors have numbers where somebody insists."""

    among_compiled = False

    def __init__(self) -> None:
        super().__init__()
        self.compared: dict[int, ref[Tensor]] = {}  # a set of tensors would compare their numbers
        self.reading = reads_numbers()

    def __torch_dispatch__(
        self, op: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        try:
            result = op(*args, **(kwargs or {}))
        except self.reading:
            return self.answer(op, args[0])
        verdict = op in COPIES and args[0].dtype == torch.bool
        if verdict or (self.compared and any(map(self.was_compared, tensors_in(args)))):
            for made in tensors_in((result,)):
                if made.numel() <= FEW:
                    self.compared[id(made)] = ref(made)
        return result

    def was_compared(self, tensor: Tensor) -> bool:
        known = self.compared.get(id(tensor))
        return known is not None and known() is tensor

    def answer(self, op: Any, tensor: Tensor) -> Any:
        if op.name().startswith("aten::equal"):
            return True
        kind = tensor.dtype
        number = int(kind != torch.bool and not self.was_compared(tensor))
        return (
            bool(number)
            if kind == torch.bool
            else number
            if not kind.is_floating_point
            else (float(number))
        )
