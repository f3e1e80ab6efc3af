"""Rung: the optimizer's state in host memory, and the update where the state is.

Gradients are copied down, the processor updates its copy of the parameters, and the new values are
copied up. The gradients' norm is measured on the device, which reads them faster.

State could stay on the host and visit the device for the update, but it is twice the parameters'
size and would travel both ways; gradients down and parameters up is half of that one way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from stepladder.rungs.parameter_shards import ParameterShard


@dataclass(frozen=True, slots=True)
class HostShard(ParameterShard):
    """A piece whose numbers the optimizer updates on the host."""

    there: ParameterShard | None = None  # the same on the device

    @property
    def gradient(self) -> Tensor | None:
        assert self.there is not None
        return self.there.gradient

    def take_gradient(self) -> None:
        """Start the gradient on its way down; whoever reads it waits for the device first."""
        assert self.there is not None
        self.there.take_gradient()
        gradient = self.there.gradient
        if gradient is None:
            self.owned.grad = None
            return
        if self.owned.grad is None:
            self.owned.grad = host_copy(gradient)
        self.owned.grad.copy_(gradient, non_blocking=True)

    def drop_gradient(self) -> None:
        """The device's gradient goes; the host's place for it stays, since pinning is slow."""
        assert self.there is not None
        self.there.drop_gradient()

    def copy_to_device(self) -> None:
        """Start the updated numbers on their way to the device."""
        assert self.there is not None
        self.there.owned.data.copy_(self.owned.data, non_blocking=True)


def move_to_host(shards: Sequence[ParameterShard]) -> tuple[HostShard, ...]:
    """The same pieces with their numbers also on the host, where the optimizer finds them."""
    return tuple(host_shard(shard) for shard in shards)


def host_shard(shard: ParameterShard) -> HostShard:
    owned = nn.Parameter(host_copy(shard.owned.detach()))
    return HostShard(
        name=shard.name,
        parameter=shard.parameter,
        owned=owned,
        axes=shard.axes,
        flat=shard.flat,
        copy=shard.copy,
        there=shard,
    )


def host_copy(tensor: Tensor) -> Tensor:
    """A copy in host memory, pinned where a device copies from and to it."""
    pinned = tensor.device.type == "cuda"
    return torch.empty_like(tensor, device="cpu", pin_memory=pinned).copy_(tensor)


@torch.no_grad()
def copy_to_device(shards: Sequence[HostShard]) -> None:
    for shard in shards:
        shard.copy_to_device()
