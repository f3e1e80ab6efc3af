"""Values of the host, from all ranks to one and from one to all."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from stepladder.world import World


def first_that(world: World, has: bool) -> int:
    """The lowest rank for which this holds."""
    rank = world.place.rank
    if world.mesh is None:
        return rank
    lowest = torch.tensor(rank if has else world.place.num_ranks)
    dist.all_reduce(lowest, dist.ReduceOp.MIN, group=world.host_group)
    return int(lowest)


def gather_to(world: World, value: Any, root: int) -> list[Any]:
    """The values of all ranks on one of them; nothing on others."""
    if world.mesh is None:
        return [value]
    found = [None] * world.place.num_ranks if world.place.rank == root else None
    dist.gather_object(value, found, dst=root, group=world.host_group)
    return found or []


def send_to_all(world: World, value: Any, root: int) -> Any:
    """The value that one rank has, on every rank."""
    if world.mesh is None:
        return value
    sent = [value]
    dist.broadcast_object_list(sent, src=root, group=world.host_group)
    return sent[0]
