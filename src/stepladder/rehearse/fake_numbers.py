"""Answers for code that reads a number of a fake tensor.

The engine reads whether a step was bad, an optimizer how many steps it has taken, a module
something of its own. What was computed from a comparison is 0: nothing was bad. Any other number is
1. What is counted in the sample itself is not fake and needs no answer.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor

from stepladder.seam.dispatch import DispatchMode, reads_numbers
from stepladder.seam.operators import Operators

COPIES = Operators(("aten._to_copy.default",))


class FakeNumbers(DispatchMode):
    """A block in which fake tensors have numbers where somebody insists."""

    def __init__(self) -> None:
        super().__init__()
        self.compared: WeakSet[Tensor] = WeakSet()
        self.reading = reads_numbers()

    def __torch_dispatch__(
        self, op: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        try:
            result = op(*args, **(kwargs or {}))
        except self.reading:
            return self.answer(op, args[0])
        if op in COPIES and args[0].dtype == torch.bool:
            self.compared.add(result)
        return result

    def answer(self, op: Any, tensor: Tensor) -> Any:
        if op.name().startswith("aten::equal"):
            return True
        kind = tensor.dtype
        number = int(kind != torch.bool and tensor not in self.compared)
        return (
            bool(number)
            if kind == torch.bool
            else number
            if not kind.is_floating_point
            else (float(number))
        )
