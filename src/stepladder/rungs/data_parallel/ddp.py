"""Rung: whole copies of the model, each learning from other samples.

Gradients are reduced in buckets while backward still runs, in the last pass of a batch only. torch
has two engines. DDP takes a whole module of plain tensors and knows the more ways to send less.
Parameters that are cut already, and modules that are a pipeline's stages, DDP cannot take; there
FSDP2's machinery reduces block by block and slices nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from inspect import signature
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from stepladder.plan import Plan
from stepladder.plan.layout import COPIES
from stepladder.seam import sharding
from stepladder.seam.reducer import sort_buckets
from stepladder.world import World

from .broadcast_parameters import declares
from .fsdp_units import units_of
from .gradient_compression import compress
from .gradient_sync import Exchange
from .zero2_zero3 import mixed_policy, passes_of, rest

# The switch by which a copy takes over another's buffers, off; renamed in torch 2.13.
RENAMED = "forward_sync_buffers" in signature(DistributedDataParallel).parameters
BUFFERS: dict[str, Any] = {"forward_sync_buffers" if RENAMED else "broadcast_buffers": False}


def replicate(module: nn.Module, plan: Plan, world: World) -> Exchange:
    """The module as one of several copies that end every step alike."""
    group = world.group(*COPIES)
    known = declares(module)
    copy = DistributedDataParallel(
        module,
        process_group=group,
        # Buckets share memory with `.grad`: no second copy of the gradients.
        gradient_as_bucket_view=True,
        # Running statistics are each copy's own, as they are each pass's own on one device.
        **BUFFERS,
        init_sync=False,  # all ranks began alike before any rung
        # Whoever declares its parts uses them all; any other module may skip some, now and then.
        find_unused_parameters=not known,
    )
    if known:
        settle_buckets(copy)
    compressed = plan.compress.kind != "none"
    traffic = compress(copy, plan.compress, group) if compressed else None

    def passing(last: bool) -> AbstractContextManager[Any]:
        return nullcontext() if last else copy.no_sync()

    return Exchange(copy, group.size(), passing, traffic)


def settle_buckets(copy: DistributedDataParallel) -> None:
    """Have DDP sort its buckets before the first batch, by how the module lists its parameters.

    By itself it sorts them after the first batch, in the order in which gradients came. Three ranks
    or more add up in an order that depends on where in a bucket a gradient lies, so a resumed run's
    first batch would round otherwise than the same batch of the run that went on. So gradients of
    zero are exchanged here, last parameter first, as in a backward pass. A module that declares its
    parts lists them in their order and loses nothing; others DDP never sorts.
    """
    trained = [parameter for parameter in copy.module.parameters() if parameter.requires_grad]
    with torch.enable_grad():
        nothing = torch.zeros((), device=trained[0].device)
        for parameter in trained:  # what is added last is differentiated first
            nothing = nothing + parameter.sum().to(nothing.dtype) * 0
    copy.reducer.prepare_for_backward([])
    nothing.backward()
    sort_buckets(copy)
    for parameter in trained:
        parameter.grad = None


def replicate_by_blocks(
    module: nn.Module, blocks: Sequence[tuple[str, nn.Module]], plan: Plan, world: World
) -> Exchange:
    """The same for a module that holds cut parameters, or is one stage of several."""
    mesh = world.submesh(*COPIES)
    units = units_of(module, blocks, narrow=plan.precision.work != "float32")
    for unit in units:
        policy = mixed_policy(plan.precision, unit)
        sharding.replicate_by_blocks(unit.parts, mesh=mesh, mp_policy=policy)
    module.register_forward_hook(rest)
    assert isinstance(module, FSDPModule)

    def prepare(last: bool, uses_all: bool) -> None:
        module.set_requires_gradient_sync(last)

    return Exchange(module, mesh.size(), passes_of(module, units, world, prepare))
