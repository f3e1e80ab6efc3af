"""Rung ZeRO 1: every copy updates one slice of each parameter and sends it to the others.

The optimizer's state exists once over the shard axis instead of once on each rank; parameters and
gradients stay whole. The slices of many parameters are gathered together: one collective for each
parameter would wait for the network once for every bias.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import nn

from stepladder.plan.layout import EXPERT_SLICES, SLICES
from stepladder.plan.shared_constants import PARAMETER_BUCKET_BYTES
from stepladder.rungs.parameter_shards import ParameterShard, cut, local, real
from stepladder.seam.process_groups import gather_tensor
from stepladder.world import World


def slicing_axes(shard: ParameterShard) -> tuple[str, ...]:
    """The axes whose ranks hold the same values, and update a slice each."""
    return EXPERT_SLICES if "experts" in (*shard.axes, shard.apart) else SLICES


def slice_shard(shard: ParameterShard, axes: tuple[str, ...], world: World) -> ParameterShard:
    """A slice of a shard's flattened values; a copy where they are not contiguous."""
    group = world.group(*axes)
    index, ways = group.rank(), group.size()
    whole = local(shard.parameter).detach()
    size = slice_size(whole.numel(), ways)
    flat = slice(min(index * size, whole.numel()), min((index + 1) * size, whole.numel()))
    owned = nn.Parameter(cut(whole, flat))
    return replace(shard, owned=owned, axes=(*shard.axes, *axes), flat=flat)


def slice_size(num_elements: int, ways: int) -> int:
    """Elements of the first slices; the last may have fewer, or none."""
    return -(-num_elements // ways)


@torch.no_grad()
def send_slices(shards: Sequence[ParameterShard], group: dist.ProcessGroup) -> None:
    """All-gather the slices that each rank updated."""
    ways = group.size()
    for bucket in buckets(shards):
        sizes = [slice_size(local(shard.parameter).numel(), ways) for shard in bucket]
        mine = bucket[0].owned.new_empty(sum(sizes))
        for shard, place in zip(bucket, mine.split(sizes)):
            place[: shard.owned.numel()].copy_(shard.owned)
        everything = mine.new_empty(ways * sum(sizes))
        gather_tensor(real(everything), real(mine), group=group)  # gloo gathers no complex numbers
        for shard, part in zip(bucket, everything.view(ways, -1).split(sizes, dim=1)):
            whole = local(shard.parameter).detach()
            whole.copy_(part.reshape(-1)[: whole.numel()].view(whole.shape))


def buckets(
    shards: Sequence[ParameterShard], size_bytes: int = PARAMETER_BUCKET_BYTES
) -> Iterator[list[ParameterShard]]:
    """Shards of one type together, about `size_bytes` of whole parameters at a time."""
    filling: dict[torch.dtype, list[ParameterShard]] = {}
    for shard in shards:
        bucket = filling.setdefault(shard.owned.dtype, [])
        bucket.append(shard)
        if sum(local(one.parameter).nbytes for one in bucket) >= size_bytes:
            yield filling.pop(shard.owned.dtype)
    yield from filling.values()
