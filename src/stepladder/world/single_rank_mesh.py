"""A device mesh for a single rank, which some of torch's engines require."""

from __future__ import annotations

from dataclasses import replace

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from stepladder.plan import AXES

from .world import World


def with_mesh(world: World) -> World:
    """The same world with a mesh; if it has none, one of this rank alone."""
    if world.mesh is not None:
        return world
    if not dist.is_initialized():
        backend = "nccl" if world.device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    mesh = init_device_mesh(world.device.type, world.layout.shape, mesh_dim_names=AXES)
    return replace(world, mesh=mesh)
