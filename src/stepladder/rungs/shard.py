"""Rung ZeRO 2 and 3: parameters, gradients and optimizer state in slices (torch's FSDP2).

Each block is gathered just before it is used, one block ahead of the one that computes, and its
gradients leave in slices as soon as its backward is done. ZeRO 3 drops the gathered block after
forward and gathers it again for backward; ZeRO 2 keeps it until backward is done.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from stepladder.plan import Plan, Precision
from stepladder.world import World

from .exchange import Exchange

SLICES = ("shard", "context")


def shard(
    module: nn.Module, blocks: Sequence[tuple[str, nn.Module]], plan: Plan, world: World
) -> Exchange:
    """Slice the module in place, block by block; what lies outside the blocks is one more."""
    mesh = slicing_mesh(world)
    policy = mixed_policy(plan.precision)
    for _, block in blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=plan.zero == 3)
    fully_shard(module, mesh=mesh, mp_policy=policy, reshard_after_forward=plan.zero == 3)
    assert isinstance(module, FSDPModule)

    def passing(last: bool) -> AbstractContextManager[Any]:
        module.set_is_last_backward(last)
        return nullcontext()

    return Exchange(module, mesh.size(), passing)


def slicing_mesh(world: World) -> DeviceMesh:
    """Slices along shard and context; whole copies of all slices along replicate."""
    if world.layout.replicate == 1:
        return world.submesh(*SLICES)
    assert world.mesh is not None
    if world.layout.context == 1:
        return world.mesh["replicate", "shard"]
    world.submesh(*SLICES)  # makes the joint dimension known to the mesh
    raise NotImplementedError


def mixed_policy(precision: Precision) -> MixedPrecisionPolicy:
    """Parameters travel and work in fewer bits; gradients are added up in the plan's type."""
    if not precision.mixed:
        return MixedPrecisionPolicy(cast_forward_inputs=False)
    return MixedPrecisionPolicy(
        param_dtype=getattr(torch, precision.work),
        reduce_dtype=getattr(torch, precision.reduce),
        cast_forward_inputs=False,
    )
