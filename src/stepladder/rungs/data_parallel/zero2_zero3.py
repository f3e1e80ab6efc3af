"""Rung ZeRO 2 and 3: parameters, gradients and optimizer state in slices (torch's FSDP2).

Each block is gathered just before it is used, one block ahead of the one that computes, and its
gradients leave in slices as soon as its backward is done. ZeRO 3 drops the gathered block after
forward and gathers it again for backward; ZeRO 2 keeps it until the batch's last backward is done.

Ranks may use different parameters of a block (torch 2.13 and later). A whole block must run on all
of them or on none: whoever skips one does not take part in gathering it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)

from stepladder.plan import Precision, SettledPlan
from stepladder.plan.layout import COPIES, SLICES
from stepladder.plan.shared_constants import PREFETCHED_BLOCKS
from stepladder.seam.sharding import join
from stepladder.world import World

from .broadcast_parameters import declares
from .fsdp_units import Unit, units_of
from .gradient_sync import Exchange
from .unused_parameters import Usage


def shard(
    module: nn.Module,
    blocks: Sequence[tuple[str, nn.Module]],
    settled: SettledPlan,
    world: World,
) -> Exchange:
    """Slice the module in place, block by block; what lies outside the blocks is one more."""
    precision, mesh = settled.plan.precision, slicing_mesh(world)
    units = units_of(module, blocks, narrow=precision.work != "float32")
    lay_in_rows(module)
    for unit in units:
        fully_shard(
            unit.parts,
            mesh=mesh,
            mp_policy=mixed_policy(precision, unit),
            offload_policy=offload_policy(settled, world.device),
            # What forward used last, backward uses first.
            reshard_after_forward=settled.drops_gathered
            and not unit.last
            and unit is not units[-1],
        )
    prefetch([unit.parts[0] for unit in units[:-1] if not unit.full_width])
    module.register_forward_hook(rest)
    assert isinstance(module, FSDPModule)

    def prepare(last: bool, uses_all: bool) -> None:
        if not settled.drops_gathered:
            module.set_reshard_after_backward(last)
        # Copies add up once a batch, where each pass adds the same parameters' gradients.
        module.set_requires_all_reduce(last or not uses_all)

    return Exchange(module, mesh.size(), passes_of(module, units, world, prepare))


def slicing_mesh(world: World) -> DeviceMesh:
    """Slices along shard and context; whole copies of all slices along replicate."""
    slices = world.submesh(*SLICES)
    if world.layout.replicate == 1:
        return slices
    assert world.mesh is not None
    # Of the same root as the tensor axis, without which cut parameters could not be sliced.
    return join([world.mesh["replicate"], slices])


def lay_in_rows(module: nn.Module) -> None:
    """Parameters as torch slices them: along the first dimension, one row after another."""
    for parameter in module.parameters():
        parameter.data = parameter.data.contiguous()


def mixed_policy(precision: Precision, unit: Unit) -> MixedPrecisionPolicy:
    """Parameters travel and work in fewer bits; gradients are added up in the plan's type."""
    if unit.full_width or not precision.mixed:
        return MixedPrecisionPolicy(cast_forward_inputs=False)
    return MixedPrecisionPolicy(
        param_dtype=getattr(torch, precision.work),
        reduce_dtype=getattr(torch, precision.reduce),
        cast_forward_inputs=False,
    )


def offload_policy(settled: SettledPlan, device: torch.device) -> OffloadPolicy:
    if not settled.offloads_parameters:
        return OffloadPolicy()
    return CPUOffloadPolicy(pin_memory=device.type == "cuda")


def prefetch(blocks: Sequence[nn.Module]) -> None:
    """Have each block's parameters on their way while the one before it computes."""
    sliced: list[FSDPModule] = [block for block in blocks if isinstance(block, FSDPModule)]
    for index, block in enumerate(sliced):
        after = sliced[index + 1 : index + 1 + PREFETCHED_BLOCKS]
        before = sliced[max(index - PREFETCHED_BLOCKS, 0) : index]
        if after:
            block.set_modules_to_forward_prefetch(after)
        if before:
            block.set_modules_to_backward_prefetch(before[::-1])


def rest(module: nn.Module, *_: Any) -> None:
    """Leave slices behind after a pass without backward, which else would do it."""
    if not torch.is_grad_enabled():
        for part in module.modules():
            if isinstance(part, FSDPModule):
                part.reshard()


def passes_of(
    module: nn.Module, units: Sequence[Unit], world: World, prepare: Callable[[bool, bool], None]
) -> Callable[[bool], AbstractContextManager[Any]]:
    """What surrounds each pass of a batch.

    Args:
        prepare: told whether it is the last pass, and whether every pass uses every parameter.
    """
    assert isinstance(module, FSDPModule)
    group = world.group(*COPIES)
    usage = None
    if not declares(module):
        usage = Usage(module, [part for unit in units for part in unit.parts])
        if hasattr(module, "set_reduce_scatter_unused_params"):
            module.set_reduce_scatter_unused_params(True)

    @contextmanager
    def passing(last: bool) -> Iterator[None]:
        module.set_is_last_backward(last)
        prepare(last, usage is None)
        yield
        if last and usage is not None:
            usage.settle(group, world.device)

    return passing
