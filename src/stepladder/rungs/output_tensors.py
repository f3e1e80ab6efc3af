"""The tensors in whatever a module returns, for code that must find all of them.

torch's own walks know containers, and from 2.13 on dataclasses. FSDP2 gathers parameters for the
backward pass as it reaches the outputs it found in forward: with an output that it cannot look into
gradients would be wrong without a word. So it is shown a list of the tensors instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn

from stepladder.seam.pytree import tree_leaves

from .parameter_shards import local


def tensors_in(outputs: Any, depth: int = 4) -> Iterator[Tensor]:
    """The tensors of any structure: containers, dataclasses, objects with attributes."""
    if isinstance(outputs, Tensor):
        yield outputs
    elif depth and isinstance(outputs, Mapping):
        for part in outputs.values():
            yield from tensors_in(part, depth - 1)
    elif depth and isinstance(outputs, Iterable) and not isinstance(outputs, str | bytes):
        for part in outputs:
            yield from tensors_in(part, depth - 1)
    elif depth and is_dataclass(outputs):
        for part in fields(outputs):
            yield from tensors_in(getattr(outputs, part.name), depth - 1)
    elif depth and not isinstance(outputs, type):
        yield from tensors_in(getattr(outputs, "__dict__", {}), depth - 1)


def zero_loss(outputs: Any) -> Tensor:
    """Zero that depends on the tensors in it, so that every parameter gets a gradient of zero."""
    used = [tensor for tensor in tensors_in(outputs) if tensor.requires_grad]
    # A mean over no target is not a number, nor is its gradient: the other outputs will do.
    used = [tensor for tensor in used if tensor.dim()] or used
    return sum((local(t).nan_to_num().sum() * 0 for t in used), torch.zeros(()))


class ShownOutputs:
    """Shows the hooks of a sharded module the tensors in an output that torch cannot look into."""

    def __init__(self, module: nn.Module) -> None:
        """Register around the hooks that the module has."""
        self.kept: list[Any] = []  # what the module returned, while its tensors are shown instead
        module.register_forward_hook(self.show, prepend=True)
        module.register_forward_hook(self.give_back)

    def show(self, module: nn.Module, args: Any, output: Any) -> Any:
        if not is_opaque(output):
            return None
        self.kept.append(output)
        return list(tensors_in(output))

    def give_back(self, module: nn.Module, args: Any, shown: Any) -> Any:
        return self.kept.pop() if self.kept else None


def is_opaque(output: Any) -> bool:
    """Whether there are tensors in an output that its containers do not show."""
    found = [leaf for leaf in tree_leaves(output) if not isinstance(leaf, Tensor)]
    return any(True for leaf in found for _ in tensors_in(leaf))
