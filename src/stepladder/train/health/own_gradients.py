"""A rank's own gradients, seen on their way to the sum over ranks.

After the sum a wrong gradient of one rank is in every rank's. So who was wrong shows only before.
Whole parameters have hooks; what FSDP2 gathers passes through its reduce-scatter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from stepladder.rungs import Climbed, fingerprint, local
from stepladder.rungs.exact_ranks.gradient_tree import ScatterInOrder
from stepladder.seam.process_groups import scatter_tensor


class OwnGradients:
    """Numbers that tell a rank's gradients before the sum from others."""

    def __init__(self) -> None:
        self.seen: list[Tensor] | None = None  # None: nobody asks
        self.installed = False

    @contextmanager
    def watched(self, climbed: Climbed, *, in_order: bool) -> Iterator[list[Tensor]]:
        """A context of a batch's passes; the prints of their gradients are in the list.

        Args:
            in_order: FSDP2 sums in the order of `exact=ranks`.
        """
        self.install(climbed, in_order)
        handles = [
            shard.parameter.register_hook(self.see)
            for shard in climbed.shards
            if shard.parameter.is_leaf
        ]
        found: list[Tensor] = []
        self.seen = found
        try:
            yield found
        finally:
            self.seen = None
            for handle in handles:
                handle.remove()

    def see(self, gradient: Tensor) -> None:
        if self.seen is not None:
            self.seen.append(fingerprint([local(gradient)]))

    def install(self, climbed: Climbed, in_order: bool) -> None:
        if self.installed:
            return
        self.installed = True
        inner: Any = ScatterInOrder() if in_order else scatter_whole
        for part in climbed.module.modules():
            if isinstance(part, FSDPModule):
                comm: Any = WatchedScatter(inner, self.see)
                part.set_custom_reduce_scatter(comm)


class WatchedScatter:
    """FSDP2's reduce-scatter, of which the input is seen."""

    def __init__(self, inner: Callable[..., Any], see: Callable[[Tensor], None]) -> None:
        self.inner, self.see = inner, see

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> Any:
        self.see(input_tensor)
        return self.inner(output_tensor, input_tensor, group, op, async_op)


def scatter_whole(
    output: Tensor, given: Tensor, group: dist.ProcessGroup, op: Any, async_op: bool
) -> Any:
    """As FSDP2 does it by itself."""
    return scatter_tensor(output, given, group=group, op=op, async_op=async_op)
