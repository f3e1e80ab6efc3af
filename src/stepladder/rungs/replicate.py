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

from torch import nn
from torch.distributed._composable.replicate_with_fsdp import replicate as reduce_by_blocks
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from stepladder.plan import Plan
from stepladder.world import World

from .alike import COPIES, declares
from .compress import compress
from .exchange import Exchange
from .shard import mixed_policy, passes_of, rest
from .units import units_of

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
        # A static graph is learnt from a first batch whose every pass exchanges. Several passes
        # would then round otherwise than in later batches, and a resumed run's first batch
        # otherwise than the same batch of the run that went on.
        static_graph=known and plan.batch.micro is None,
    )
    compressed = plan.compress.kind != "none"
    traffic = compress(copy, plan.compress, group) if compressed else None
    copy.reducer = Steady(copy.reducer)  # type: ignore[assignment]

    def passing(last: bool) -> AbstractContextManager[Any]:
        return nullcontext() if last else copy.no_sync()

    return Exchange(copy, group.size(), passing, traffic)


class Steady:
    """DDP's reducer with the buckets it began with.

    DDP sorts its buckets anew after the first batch, in the order in which gradients came. Three
    ranks or more add up in an order that depends on where in a bucket a gradient lies, so a resumed
    run's first batch would round otherwise than the same batch of the run that went on. A module
    that declares its parts has them in their order and loses nothing; others DDP never sorts.
    """

    def __init__(self, reducer: Any) -> None:
        self._reducer = reducer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reducer, name)

    def _rebuild_buckets(self) -> bool:
        return False


def replicate_by_blocks(
    module: nn.Module, blocks: Sequence[tuple[str, nn.Module]], plan: Plan, world: World
) -> Exchange:
    """The same for a module that holds cut parameters, or is one stage of several."""
    mesh = world.submesh(*COPIES)
    units = units_of(module, blocks, narrow=plan.precision.work != "float32")
    for unit in units:
        policy = mixed_policy(plan.precision, unit)
        reduce_by_blocks(unit.parts, mesh=mesh, mp_policy=policy)
    module.register_forward_hook(rest)
    assert isinstance(module, FSDPModule)

    def prepare(last: bool, uses_all: bool) -> None:
        module.set_requires_gradient_sync(last)

    return Exchange(module, mesh.size(), passes_of(module, units, world, prepare))
