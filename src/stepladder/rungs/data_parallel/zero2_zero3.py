"""Rung ZeRO 2 and 3: parameters, gradients and optimizer state sharded by torch's FSDP2.

Each block is all-gathered just before it is used, as many blocks ahead of the one that computes as
the plan says, and its gradients are reduce-scattered as soon as its backward is done. ZeRO 3 frees
the gathered block after forward and gathers it again for backward, but for the last blocks, as many
as may be whole at a time; ZeRO 2 keeps every block until the batch's last backward.

Ranks may use different parameters of a block (unused_parameters.py), and run different blocks
(skipped_blocks.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
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

from stepladder.kernels.fused_head import fused_head_in
from stepladder.plan import FP32, Plan, Precision, SettledPlan
from stepladder.plan.layout import COPIES, EXPERT_COPIES, EXPERT_SLICES, SLICES
from stepladder.rungs.exact_ranks.gradient_tree import keep_shards, reduce_shards_in_order
from stepladder.rungs.forward_effects.in_place_inputs import CopiedInputs
from stepladder.rungs.output_tensors import ShownOutputs
from stepladder.rungs.outside_calls import OutsideCalls
from stepladder.rungs.parameter_shards import (
    NOTE_USE,
    parameters_apart,
    parts_apart,
    reshard_after_evaluation,
)
from stepladder.seam.sharding import join
from stepladder.world import World

from .broadcast_parameters import declares_anatomy
from .fsdp_units import Unit, blocks_among, is_spread, units_of
from .gradient_sync import Around, GradientSync, sum_in_float32
from .renormalised_rows import RenormalisedRows
from .replicated_parameters import ReplicatedParameters
from .skipped_blocks import SkippedBlocks
from .unused_parameters import UsedParameters, ZeroGradients


def shard(
    module: nn.Module,
    blocks: Sequence[tuple[str, nn.Module]],
    settled: SettledPlan,
    world: World,
) -> GradientSync:
    """Shard the module in place, block by block; what is outside the blocks is one more unit."""
    mesh, expert_mesh = sharding_mesh(world, SLICES), sharding_mesh(world, EXPERT_SLICES)
    # In slices exactly what whole copies compute: full width, which autocast narrows as it is used.
    precision = FP32 if settled.slices else settled.plan.precision
    alone = experts_alone(module, world)  # no other rank has the same experts
    units = units_of(module, blocks, narrow=precision.work != "float32")
    units = [unit for unit in units if not (unit.experts and alone)]
    make_contiguous(module)
    replicated = ReplicatedParameters(module, alone)
    replicated.place(world.device)
    blocks_alone = [unit for unit in units[:-1] if not (unit.full_width or unit.experts)]
    kept = kept_units(module, units, blocks_alone[-settled.kept_gathered :])
    for unit in units:
        fully_shard(
            unit.parts,
            mesh=expert_mesh if unit.experts else mesh,
            mp_policy=mixed_policy(precision, unit),
            offload_policy=offload_policy(settled, world.device),
            reshard_after_forward=settled.drops_gathered and all(unit is not one for one in kept),
            ignored_params=replicated.all,
        )
    match_norms(module, precision, world.device)
    show_outputs(module, units, settled.plan)
    prefetch([unit.parts[0] for unit in blocks_alone], settled.gathered_ahead)
    if not settled.gathered_ahead:
        gather_in_turn(units)
    reshard_after_evaluation(module)
    if not settled.plan.compile and not declares_anatomy(module):  # the compiler would see hooks
        refuse_outside_calls(module, [unit.parts[0] for unit in units[:-1]])
    assert isinstance(module, FSDPModule)

    def prepare(last: bool, uses_all: bool) -> None:
        if not settled.drops_gathered:
            module.set_reshard_after_backward(last)
        # All-reduce over replicas once a batch, if every micro-batch uses every parameter. What
        # waits for the last is added up in the type of the parameters.
        module.set_requires_all_reduce(last or not uses_all or settled.sums_gradients_in_float32)

    ways, group, adding = mesh.size(), world.group(*COPIES), None
    if settled.slices:
        reduce_shards_in_order([unit.parts[0] for unit in units])
        ways, adding = 1, keep_shards(module, replicated.trained, group)
    elif settled.sums_gradients_in_float32:
        adding = sum_in_float32(module, replicated.averaging(group))
    return synchronise(module, units, replicated, ways, world, prepare, adding)


def kept_units(module: nn.Module, units: list[Unit], last: list[Unit]) -> list[Unit]:
    """What stays gathered: backward uses the last first, and a fused loss reads the head's."""
    heads = [unit for unit in units if fused_head_in(module) in unit.parts]
    return [*last, *heads, units[-1]]


def synchronise(
    module: nn.Module,
    units: Sequence[Unit],
    replicated: ReplicatedParameters,
    ways: int,
    world: World,
    prepare: Callable[[bool, bool], None],
    adding: Around | None = None,
) -> GradientSync:
    """How a module whose units FSDP2 gathers or reduces is run.

    Args:
        prepare: called before each micro-batch with whether it is the last, and whether each uses
            every parameter.
        ways: ranks whose gradients are averaged.
        adding: context of a micro-batch in which gradients are added up; None: FSDP2 does that,
            and what it leaves alone is averaged.
    """
    assert isinstance(module, FSDPModule)
    group = world.group(*COPIES)
    renormalised = RenormalisedRows(module, group, world.device)
    adding = adding or replicated.averaging(group)
    around = micro_batch_context(module, units, replicated, renormalised, world, prepare, adding)
    sync = GradientSync(module, ways, around, after_evaluation=renormalised.shorten)
    sync = send_zeros(module, units, replicated, sync)
    # Last: what marks a block's inputs gives it views, which nobody may write to.
    for block in () if declares_anatomy(module) else blocks_among(units):
        CopiedInputs(block)
    return sync


def show_outputs(module: nn.Module, units: Sequence[Unit], plan: Plan) -> None:
    """Have FSDP2 find the tensors in outputs of any class; compiled blocks keep to containers."""
    for unit in () if declares_anatomy(module) else units:
        for part in unit.parts:
            if part is module or not plan.compile:
                ShownOutputs(part)


def send_zeros(
    module: FSDPModule, units: Sequence[Unit], replicated: ReplicatedParameters, sync: GradientSync
) -> GradientSync:
    """Have a rank send zeros for what it did not use, where another rank may have used it."""
    if declares_anatomy(sync.module):
        return sync
    if sends_unused(module):
        module.set_reduce_scatter_unused_params(True)
        return sync
    zeros = ZeroGradients.watch(units, replicated.all)
    return replace(sync, before_backward=zeros.before_backward)


def sends_unused(module: FSDPModule) -> bool:
    """Whether torch sends them (2.13)."""
    return hasattr(module, "set_reduce_scatter_unused_params")


def experts_alone(module: nn.Module, world: World) -> set[nn.Parameter]:
    """Experts' parameters that no other rank has a copy or a slice of: nobody reduces them."""
    if world.group(*EXPERT_COPIES).size() > 1:
        return set()
    apart = parameters_apart(module)
    return {p for p in module.parameters() if is_spread(p) or p in apart}


def sharding_mesh(world: World, axes: tuple[str, ...]) -> DeviceMesh:
    """Shards along shard and context; replicas of all shards along replicate (HSDP)."""
    slices = world.submesh(*axes)
    if world.layout.replicate == 1:
        return slices
    assert world.mesh is not None
    # With the same root mesh as the tensor axis, or cut parameters could not be sharded.
    return join([world.mesh["replicate"], slices])


def make_contiguous(module: nn.Module) -> None:
    """Make parameters contiguous, since torch shards them along the first dimension."""
    for parameter in module.parameters():
        parameter.data = parameter.data.contiguous()


def mixed_policy(
    precision: Precision, unit: Unit, *, sums_in_float32: bool = False
) -> MixedPrecisionPolicy:
    """Gather and compute parameters in 16 bits; reduce gradients in the plan's type.

    Args:
        sums_in_float32: add up and reduce 16-bit gradients of several micro-batches in float32.
    """
    if sums_in_float32:
        return MixedPrecisionPolicy(reduce_dtype=torch.float32, cast_forward_inputs=False)
    if unit.full_width or not precision.mixed:
        return MixedPrecisionPolicy(cast_forward_inputs=False)
    return MixedPrecisionPolicy(
        param_dtype=getattr(torch, precision.work),
        reduce_dtype=getattr(torch, precision.reduce),
        cast_forward_inputs=False,
    )


def match_norms(module: nn.Module, precision: Precision, device: torch.device) -> None:
    """Give norms inputs in the type of their gathered weights: on CPUs autocast does not."""
    for part in module.modules() if precision.mixed and device.type == "cpu" else ():
        if isinstance(part, nn.LayerNorm | nn.GroupNorm) and part.weight is not None:
            part.register_forward_pre_hook(match_weight, with_kwargs=True)


def match_weight(
    norm: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    (given,) = (*args, *kwargs.values())
    return (given.to(norm.weight.dtype),), {}


def offload_policy(settled: SettledPlan, device: torch.device) -> OffloadPolicy:
    if not settled.offloads_parameters:
        return OffloadPolicy()
    return CPUOffloadPolicy(pin_memory=device.type == "cuda")


def prefetch(blocks: Sequence[nn.Module], ahead: int) -> None:
    """Gather so many blocks ahead of the one that computes, in either direction."""
    sliced: list[FSDPModule] = [block for block in blocks if isinstance(block, FSDPModule)]
    for index, block in enumerate(sliced):
        after = sliced[index + 1 : index + 1 + ahead]
        before = sliced[max(index - ahead, 0) : index]
        if after:
            block.set_modules_to_forward_prefetch(after)
        if before:
            block.set_modules_to_backward_prefetch(before[::-1])


def gather_in_turn(units: Sequence[Unit]) -> None:
    """Gather nothing ahead in backward: FSDP2 would, where a unit names no others to gather."""
    for unit in units:
        part = unit.parts[0]
        assert isinstance(part, FSDPModule)
        part.set_modules_to_backward_prefetch([part])  # itself, which is gathered already


def refuse_outside_calls(module: nn.Module, blocks: Sequence[nn.Module]) -> None:
    """Have the first pass refuse a module whose blocks are read without being called."""
    names = {part: name for name, part in module.named_modules()}
    calls = OutsideCalls(
        type(module).__name__.removeprefix("FSDP"),  # fully_shard's own subclass
        [(names[block], block) for block in blocks],
        "layout.shard",
        "Use zero1 or ddp, or call that layer inside the block.",
    )
    module.register_forward_hook(calls.stop)


def micro_batch_context(
    module: nn.Module,
    units: Sequence[Unit],
    replicated: ReplicatedParameters,
    renormalised: RenormalisedRows,
    world: World,
    prepare: Callable[[bool, bool], None],
    adding: Around,
) -> Around:
    """The context of each micro-batch of a batch."""
    assert isinstance(module, FSDPModule)
    group, few = world.group(*COPIES), world.group(*EXPERT_COPIES)
    used = None
    if not declares_anatomy(module):
        parts = [part for unit in units for part in unit.parts]
        used = UsedParameters(module, parts, replicated.all)
        for expert in parts_apart(module):
            if expert in parts:
                vars(expert)[NOTE_USE] = partial(used.note_use, expert)
        SkippedBlocks(module, blocks_among(units), used.skip)

    @contextmanager
    def around_micro_batch(last: bool) -> Iterator[None]:
        module.set_is_last_backward(last)
        prepare(last, used is None)
        with adding(last):
            yield
        if last and used is not None:
            used.drop_unused(group, few, world.device)
        if last:
            renormalised.shorten()

    return around_micro_batch
