"""Rung ZeRO 1: every copy updates one slice of each parameter and sends it to the others.

The optimizer's state exists once over the shard axis instead of once a rank; parameters and
gradients stay whole. The updated slices of many parameters travel together: one collective a
parameter would wait for the network once for every bias.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import nn

from stepladder.plan.layout import SLICES
from stepladder.rungs.parameter_shards import Piece, cut, local
from stepladder.world import World

from .broadcast_parameters import BUCKET_BYTES

# Renamed in torch 2.13.
gather_all = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


def slice_pieces(pieces: Sequence[Piece], world: World) -> tuple[Piece, ...]:
    """This rank's slice of each piece."""
    group = world.group(*SLICES)
    return tuple(slice_piece(piece, group.rank(), group.size()) for piece in pieces)


def slice_piece(piece: Piece, index: int, ways: int) -> Piece:
    """A slice of a piece's numbers in a row; of one that is stored otherwise, a copy."""
    whole = local(piece.parameter).detach()
    size = slice_size(whole.numel(), ways)
    flat = slice(min(index * size, whole.numel()), min((index + 1) * size, whole.numel()))
    held = nn.Parameter(cut(whole, flat))
    return replace(piece, held=held, axes=(*piece.axes, *SLICES), flat=flat)


def slice_size(num_elements: int, ways: int) -> int:
    """Numbers of the first slices; the last may hold fewer, or none."""
    return -(-num_elements // ways)


@torch.no_grad()
def send_slices(pieces: Sequence[Piece], group: dist.ProcessGroup) -> None:
    """Give every rank the slices the others updated."""
    ways = group.size()
    for bucket in buckets(pieces):
        sizes = [slice_size(local(piece.parameter).numel(), ways) for piece in bucket]
        mine = bucket[0].held.new_empty(sum(sizes))
        for piece, place in zip(bucket, mine.split(sizes)):
            place[: piece.held.numel()].copy_(piece.held)
        everything = mine.new_empty(ways * sum(sizes))
        gather_all(everything, mine, group=group)
        for piece, part in zip(bucket, everything.view(ways, -1).split(sizes, dim=1)):
            whole = local(piece.parameter).detach()
            whole.copy_(part.reshape(-1)[: whole.numel()].view(whole.shape))


def buckets(pieces: Sequence[Piece], size_bytes: int = BUCKET_BYTES) -> Iterator[list[Piece]]:
    """Pieces of one type together, about `size_bytes` of whole parameters at a time."""
    filling: dict[torch.dtype, list[Piece]] = {}
    for piece in pieces:
        bucket = filling.setdefault(piece.held.dtype, [])
        bucket.append(piece)
        if sum(local(one.parameter).nbytes for one in bucket) >= size_bytes:
            yield filling.pop(piece.held.dtype)
    yield from filling.values()
