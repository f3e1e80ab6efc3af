"""What a block is called with: one tensor, or what its model gives it besides (positions, masks).

Only the first tensor of numbers flows from block to block. It is kept as a shape, and a trial puts
random numbers there; everything else stays as the model gave it, without caches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from stepladder.model import evaluating, uncompiled
from stepladder.model.call_module import call
from stepladder.model.forward_state import state_restored
from stepladder.model.tracing.trace_blocks import CACHES, cache_positions, without_caches
from stepladder.seam.pytree import tree_map

from .local_compute import change_first, flows


@dataclass(frozen=True, slots=True)
class BlockCall:
    """The arguments of a block; what flows is a tensor on the meta device."""

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, forward: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> BlockCall:
        args = tuple(without_caches(args, cache_positions(forward)))
        kwargs = {name: CACHES.get(name, value) for name, value in kwargs.items()}
        args, kwargs = change_first(lambda flowing: flowing.to("meta"), args, kwargs)
        return cls(args, kwargs)

    @classmethod
    def of_shape(cls, *shape: int) -> BlockCall:
        return cls((torch.empty(shape, device="meta"),))

    @property
    def shape(self) -> torch.Size | None:
        """Of what flows; None where no tensor of numbers is given."""
        found = next(filter(flows, (*self.args, *self.kwargs.values())), None)
        return None if found is None else found.shape

    def run(self, block: nn.Module, given: Tensor) -> Any:
        """Call a block with `given` for what flows, and copies of everything else."""
        args, kwargs = change_first(lambda _: given, *tree_map(copied, (self.args, self.kwargs)))
        return block(*args, **kwargs)


def copied(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) and not value.is_meta else value


@torch.no_grad()
def capture_calls(
    module: nn.Module, blocks: Sequence[tuple[str, nn.Module]], inputs: Any
) -> dict[str, BlockCall]:
    """What the module gives each block for these inputs; empty where it does not run on them."""
    calls: dict[str, BlockCall] = {}

    def keep(name: str, block: nn.Module, args: Any, kwargs: Any) -> None:
        calls.setdefault(name, BlockCall.of(block.forward, args, kwargs))

    handles = [
        block.register_forward_pre_hook(partial(keep, name), with_kwargs=True)
        for name, block in blocks
    ]
    first = next(module.parameters())

    def moved(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return value.to(first.device, first.dtype if value.is_floating_point() else None)

    try:
        with uncompiled(module), evaluating(module), state_restored(module):
            call(module, tree_map(moved, inputs))
    except Exception:  # a part of it is on another rank, or it takes no such inputs
        calls.clear()
    finally:
        for handle in handles:
            handle.remove()
    return calls
