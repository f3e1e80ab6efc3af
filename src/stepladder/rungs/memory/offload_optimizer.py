"""Rung: optimizer offloading: the optimizer's state in host memory, and the update on the CPU.

Gradients are copied to the host, the CPU updates its copy of the parameters, and the new values are
copied back. Gradient norms are computed on the device, which reads them faster.

The state could also stay on the host and be copied to the device for the update, but it is twice
the parameters' size and would be copied both ways; gradients down and parameters up is half of
that, one way each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from stepladder.rungs.parameter_shards import ParameterShard


@dataclass(frozen=True, slots=True)
class HostShard(ParameterShard):
    """A shard that the optimizer updates on the host."""

    there: ParameterShard | None = None  # the shard on the device

    @property
    def gradient(self) -> Tensor | None:
        assert self.there is not None
        return self.there.gradient

    def take_gradient(self) -> None:
        """Start copying the gradient to the host; readers must synchronise first."""
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
        """Free the device's gradient; keep the host's buffer, since pinning memory is slow."""
        assert self.there is not None
        self.there.drop_gradient()

    def copy_to_device(self) -> None:
        """Start copying the updated values to the device."""
        assert self.there is not None
        self.there.owned.data.copy_(self.owned.data, non_blocking=True)


def move_to_host(shards: Sequence[ParameterShard]) -> tuple[HostShard, ...]:
    """The same shards with copies on the host, which the optimizer updates."""
    return tuple(host_shard(shard) for shard in shards)


def host_shard(shard: ParameterShard) -> HostShard:
    owned = nn.Parameter(host_copy(shard.owned.detach()))
    if hasattr(Tensor, "grad_dtype"):  # gradients may add up in more bits than parameters have
        owned.grad_dtype = shard.owned.grad_dtype
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
    """A copy in host memory, pinned where a GPU copies from and to it."""
    pinned = tensor.device.type == "cuda"
    return torch.empty_like(tensor, device="cpu", pin_memory=pinned).copy_(tensor)


@torch.no_grad()
def copy_to_device(shards: Sequence[HostShard]) -> None:
    for shard in shards:
        shard.copy_to_device()
