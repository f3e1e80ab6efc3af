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

from stepladder.rungs.parameter_shards import Piece


@dataclass(frozen=True, slots=True)
class HostPiece(Piece):
    """A piece whose numbers the optimizer updates on the host."""

    there: Piece | None = None  # the same on the device

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
            self.held.grad = None
            return
        if self.held.grad is None:
            self.held.grad = host_copy(gradient)
        self.held.grad.copy_(gradient, non_blocking=True)

    def drop_gradient(self) -> None:
        """The device's gradient goes; the host's place for it stays, since pinning is slow."""
        assert self.there is not None
        self.there.drop_gradient()

    def bring_up(self) -> None:
        """Start the updated numbers on their way to the device."""
        assert self.there is not None
        self.there.held.data.copy_(self.held.data, non_blocking=True)


def move_to_host(pieces: Sequence[Piece]) -> tuple[HostPiece, ...]:
    """The same pieces with their numbers also on the host, where the optimizer finds them."""
    return tuple(host_piece(piece) for piece in pieces)


def host_piece(piece: Piece) -> HostPiece:
    held = nn.Parameter(host_copy(piece.held.detach()))
    return HostPiece(
        name=piece.name,
        parameter=piece.parameter,
        held=held,
        axes=piece.axes,
        flat=piece.flat,
        copy=piece.copy,
        there=piece,
    )


def host_copy(tensor: Tensor) -> Tensor:
    """A copy in host memory, pinned where a device copies from and to it."""
    pinned = tensor.device.type == "cuda"
    return torch.empty_like(tensor, device="cpu", pin_memory=pinned).copy_(tensor)


@torch.no_grad()
def bring_up(pieces: Sequence[HostPiece]) -> None:
    for piece in pieces:
        piece.bring_up()
