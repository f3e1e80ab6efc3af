"""Which shards this rank's optimizer updates, and how the updated values reach other ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from torch import nn

from stepladder.plan import SettledPlan
from stepladder.rungs.memory.offload_optimizer import copy_to_device, move_to_host
from stepladder.rungs.parameter_shards import ParameterShard, make_shards
from stepladder.world import World

from .zero1 import send_slices, slice_shard, slicing_axes

Publish = Callable[[], None]


def optimizer_shards(
    named: Iterable[tuple[str, nn.Parameter]],
    settled: SettledPlan,
    world: World,
    apart: Mapping[nn.Parameter, str] | None = None,
) -> tuple[tuple[ParameterShard, ...], Publish]:
    """The shards of parameters to update, and a function to call after each update.

    Args:
        apart: parameters in whose place other ranks along an axis have others.
    """
    shards = make_shards(named, apart)
    after: list[Publish] = []
    if settled.slices_optimizer_only:
        axes = [slicing_axes(shard) for shard in shards]
        shards = tuple(slice_shard(shard, each, world) for shard, each in zip(shards, axes))
        for each in dict.fromkeys(axes):
            alike = [shard for shard, own in zip(shards, axes) if own == each]
            after.append(partial(send_slices, alike, world.group(*each)))
    if settled.offloads_optimizer:
        on_host = move_to_host(shards)
        shards = on_host
        after.insert(0, partial(copy_to_device, on_host))  # before slices are sent from the device

    def publish() -> None:
        for tell in after:
            tell()

    return shards, publish
