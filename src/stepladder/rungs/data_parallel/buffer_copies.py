"""Buffers of the copies of a model, which differ because each copy saw other samples.

During training every copy keeps its own. Evaluation uses the mean of running statistics, and puts
each copy's own back; a checkpoint stores the mean for runs on other ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from stepladder.checkpoint import as_bytes
from stepladder.plan.layout import COPIES
from stepladder.seam.modules import persistent_buffers
from stepladder.world import World

from .broadcast_parameters import is_strided, stored

ALIKE = (*COPIES, "tensor")  # axes along which ranks hold the same buffers
PRIME = 1_000_003  # between the sizes of a shape
LANES = 1024  # words of a row, of which sums over rows and over columns are taken
SMALL_BYTES = 2**20  # tensors below this are read together
FACTORS = ((30, 0xBF58476D1CE4E5B9 - 2**64), (27, 0x94D049BB133111EB - 2**64))


@torch.no_grad()
def fingerprint(tensors: Iterable[Tensor]) -> Tensor:
    """64 bits that change when any bit of any tensor does, or numbers change places.

    Memory is read as words of 64 bits in rows, and added up over rows and over columns; sums of
    whole numbers have no order. Each of these sums is then hashed with its place. So all of it
    costs two passes over memory, and nothing as large as the tensors is written.
    """
    found: list[Tensor] = []
    for flat in flat_bytes(tensors):
        sums = sums_of_words(flat)
        found.append(sums if not found else sums.to(found[0].device))
    if not found:
        return torch.zeros((), dtype=torch.int64)
    every = torch.cat(found)
    places = torch.arange(1, every.numel() + 1, device=every.device)
    return scatter_bits(every + scatter_bits(places)).sum()


def scatter_bits(words: Tensor) -> Tensor:
    """Other words for each word, of which about half of the bits change when one bit of it does.

    The finalizer of SplitMix64 (Steele, Lea, Flood 2014), but that shifts keep the sign here.
    """
    for shift, factor in FACTORS:
        words = (words ^ (words >> shift)) * factor
    return words ^ (words >> 31)


def flat_bytes(tensors: Iterable[Tensor]) -> Iterator[Tensor]:
    """The bytes of every large tensor, and of the small ones together."""
    small: dict[torch.device, list[Tensor]] = {}
    for tensor in tensors:
        flat = as_bytes(tensor)
        if flat.numel() >= SMALL_BYTES:
            yield flat
        else:
            small.setdefault(flat.device, []).append(flat)
    for together in small.values():
        yield torch.cat(together)


def sums_of_words(flat: Tensor) -> Tensor:
    """What is left of bytes when rows and columns of words are added up."""
    if flat.numel() % 8 or flat.storage_offset() % 8:
        flat = torch.cat([flat, flat.new_zeros(-flat.numel() % 8)])
    words = flat.view(torch.int64)
    rows = words.numel() // LANES
    if rows <= 2:
        return words
    table = words[: rows * LANES].view(rows, LANES)
    return torch.cat([table.sum(0), table.sum(1), words[rows * LANES :]])


@torch.no_grad()
def find_differing(tensors: Sequence[Tensor], world: World) -> list[tuple[bool, bool]]:
    """For each tensor whether its numbers, in any bit, and its shape differ between the copies."""
    if world.mesh is None or not tensors:
        return [(False, False)] * len(tensors)
    prints = [
        torch.stack([fingerprint([tensor]).to(world.device), shape_number(tensor, world.device)])
        for tensor in tensors
    ]
    mine = torch.stack(prints)
    highest = world.max(mine.clone(), *ALIKE)
    lowest = ~world.max(~mine, *ALIKE)
    return [(numbers, shape) for numbers, shape in (highest != lowest).tolist()]


def shape_number(tensor: Tensor, device: torch.device) -> Tensor:
    number = len(tensor.shape)
    for size in tensor.shape:
        number = (number * PRIME + size) % 2**62
    return torch.tensor(number, device=device)


@torch.no_grad()
def mean_over_copies(tensor: Tensor, world: World) -> Tensor:
    """The mean of a floating-point or complex tensor over the copies, which have it in one shape.

    Values that are equal on all copies stay the same to the bit.
    """
    real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    wide = real.detach().to(torch.float64 if real.dtype == torch.float64 else torch.float32)
    wide = wide.contiguous()
    high, low = world.max(wide.clone(), *ALIKE), -world.max(-wide, *ALIKE)
    copies = 1
    for axis in ALIKE:
        copies *= getattr(world.layout, axis)
    mean = world.sum(wide.clone(), *ALIKE) / copies
    made = torch.where(low == high, wide, mean).to(real.dtype)
    return torch.view_as_complex(made.contiguous()) if tensor.is_complex() else made


def is_averaged(tensor: Tensor) -> bool:
    """Whether copies that differ have a mean: a count or a flag has none."""
    return tensor.is_floating_point() or tensor.is_complex()


def whole_buffers(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The dense buffers of the state dict by name, but for those that are cut over ranks."""
    for prefix, part in module.named_modules():
        for name, buffer in persistent_buffers(part):
            if is_strided(buffer) and not isinstance(buffer, DTensor):
                yield f"{prefix}.{name}".lstrip("."), buffer


@contextmanager
def averaged_buffers(module: nn.Module, world: World) -> Iterator[None]:
    """A block in which running statistics are the mean over all copies; each gets its own back."""
    buffers = [stored(buffer) for _, buffer in whole_buffers(module) if is_averaged(buffer)]
    found = zip(buffers, find_differing(buffers, world))
    differ = [buffer for buffer, (numbers, shape) in found if numbers and not shape]
    own = [buffer.detach().clone() for buffer in differ]
    for buffer in differ:
        buffer.detach().copy_(mean_over_copies(buffer, world))
    try:
        yield
    finally:
        for buffer, value in zip(differ, own):
            buffer.detach().copy_(value)
