"""What of each parameter this rank updates: the whole, its shard, its cut, or a slice of a copy.

The optimizer sees only pieces: plain tensors that share the parameter's storage. Its rule works
element by element, so a piece moves exactly as it would inside the whole parameter; and torch's
fused kernels, which refuse to mix distributed tensors with plain ones, serve every layout.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from stepladder.seam.operators import foreach_norm

JOINT = "_"  # between the axes in the name of a mesh dimension made of several


@dataclass(frozen=True, slots=True)
class Piece:
    """The part of one parameter that this rank holds, with its gradient."""

    name: str  # the parameter's
    parameter: nn.Parameter  # as the module holds it
    held: nn.Parameter  # this rank's own numbers of it
    axes: tuple[str, ...] = ()  # of the layout, along which other ranks hold the other numbers
    flat: slice | None = None  # which of the local tensor's numbers, in a row; None: all
    copy: bool = False  # an earlier stage holds the same parameter, and its norm counts

    @property
    def gradient(self) -> Tensor | None:
        """The piece's gradient, where it is fastest read."""
        return self.held.grad

    def take_gradient(self) -> None:
        """Have the piece's gradient be the parameter's, where they are not one tensor."""
        if self.held is self.parameter:
            return
        gradient = self.parameter.grad
        self.held.grad = None if gradient is None else cut(local(gradient), self.flat)

    def drop_gradient(self) -> None:
        self.parameter.grad = self.held.grad = None


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def cut(tensor: Tensor, flat: slice | None) -> Tensor:
    return tensor if flat is None else tensor.reshape(-1)[flat]


def make_pieces(named: Iterable[tuple[str, nn.Parameter]]) -> tuple[Piece, ...]:
    """Every trainable parameter as this rank holds it: whole, or its part of a distributed one."""
    return tuple(whole_piece(name, p) for name, p in named if p.requires_grad)


def whole_piece(name: str, parameter: nn.Parameter) -> Piece:
    if not isinstance(parameter, DTensor):
        return Piece(name, parameter, parameter)
    held = nn.Parameter(parameter.to_local().detach())
    return Piece(name, parameter, held, sliced_axes(parameter))


def sliced_axes(tensor: DTensor) -> tuple[str, ...]:
    """The layout's axes along which a distributed tensor is sliced rather than copied."""
    names = tensor.device_mesh.mesh_dim_names or ()
    return tuple(
        axis
        for name, placement in zip(names, tensor.placements)
        if not placement.is_replicate()
        for axis in name.split(JOINT)
    )


@torch.no_grad()
def squares(pieces: Iterable[Piece]) -> Tensor:
    """The sum of squares of each piece's gradient, in fp32 whatever the gradients are."""
    gradients = [piece.gradient for piece in pieces]
    # A slice of a parameter with fewer rows than ranks may be empty, and has no norm.
    having = [g if g.numel() else g.new_zeros(1) for g in gradients if g is not None]
    return torch.stack(foreach_norm(having, dtype=torch.float32)).square()
