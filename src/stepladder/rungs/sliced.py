"""Rung ZeRO 1: every copy updates one slice of each parameter and sends it to the others.

The optimizer's state exists once over the shard axis instead of once a rank; parameters and
gradients stay whole.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import nn

from stepladder.world import World

from .pieces import Piece, cut, local

SLICES = ("shard", "context")  # axes along which the optimizer's state is sliced


def slice_pieces(pieces: Sequence[Piece], world: World) -> tuple[Piece, ...]:
    """This rank's slice of each piece."""
    group = world.group(*SLICES)
    return tuple(slice_piece(piece, group.rank(), group.size()) for piece in pieces)


def slice_piece(piece: Piece, index: int, ways: int) -> Piece:
    whole = local(piece.parameter).detach()
    if not whole.is_contiguous():
        raise AssertionError(f"{piece.name} is not stored in a row")
    size = -(-whole.numel() // ways)
    flat = slice(min(index * size, whole.numel()), min((index + 1) * size, whole.numel()))
    held = nn.Parameter(cut(whole, flat))
    return Piece(piece.name, piece.parameter, held, (*piece.axes, *SLICES), flat)


@torch.no_grad()
def send_slices(pieces: Sequence[Piece], world: World) -> None:
    """Give every rank the slices the others updated."""
    group = world.group(*SLICES)
    for piece in pieces:
        whole = local(piece.parameter).detach().reshape(-1)
        size = -(-whole.numel() // group.size())
        parts = [whole[i * size : (i + 1) * size] for i in range(group.size())]
        if whole.numel() == size * group.size():
            dist.all_gather_into_tensor(whole, piece.held.detach().clone(), group=group)
            continue
        for owner, part in enumerate(parts):
            if part.numel():
                dist.broadcast(part, group_src=owner, group=group)
