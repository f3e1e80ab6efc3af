"""Rung: data parallel: whole copies of the model, each learning from different samples.

Gradients are all-reduced in buckets while backward runs, in the last micro-batch of a batch only.
torch has two engines. DDP takes a whole module of plain tensors and can compress gradients. It
cannot take parameters that are already cut (tensor parallel) or pipeline stages; there, FSDP2's
machinery all-reduces block by block and shards nothing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from inspect import signature
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from stepladder.plan import Plan, SettledPlan
from stepladder.plan.layout import COPIES, EXPERT_COPIES
from stepladder.rungs.parameter_shards import reshard_after_evaluation
from stepladder.seam import sharding
from stepladder.seam.process_groups import sort_buckets
from stepladder.world import World

from .broadcast_parameters import declares_anatomy
from .fsdp_units import units_of
from .gradient_compression import compress
from .gradient_sync import GradientSync
from .renormalised_rows import RenormalisedRows
from .replicated_parameters import ReplicatedParameters
from .zero2_zero3 import (
    experts_alone,
    match_norms,
    mixed_policy,
    show_outputs,
    synchronise,
)

# Buffers are not broadcast; the option was renamed in torch 2.13.
RENAMED = "forward_sync_buffers" in signature(DistributedDataParallel).parameters
BUFFERS: dict[str, Any] = {"forward_sync_buffers" if RENAMED else "broadcast_buffers": False}


def replicate(module: nn.Module, plan: Plan, world: World) -> GradientSync:
    """Wrap the module in DDP."""
    group = world.group(*COPIES)
    known = declares_anatomy(module)
    copy = DistributedDataParallel(
        module,
        process_group=group,
        # Buckets share memory with `.grad`: no second copy of the gradients.
        gradient_as_bucket_view=True,
        # Running statistics stay local; averaged_buffers agrees on them.
        **BUFFERS,
        init_sync=False,  # parameters were broadcast before any rung
        # A model that declares its anatomy uses every parameter; any other may skip some.
        find_unused_parameters=not known,
    )
    if known:
        sort_buckets_now(copy)
    else:
        consume_warning(group, world.device)
    renormalised = RenormalisedRows(module, group, world.device)
    compressed = plan.compress.kind != "none"
    compression = compress(copy, plan.compress, group) if compressed else None

    @contextmanager
    def around_micro_batch(last: bool) -> Iterator[None]:
        with nullcontext() if last else copy.no_sync():
            yield
        if last:
            renormalised.shorten()

    def find_unused(loss: Tensor, last: bool) -> None:
        """Have DDP look for unused parameters from the loss, which may read more than outputs."""
        if last and not known:
            copy.reducer.prepare_for_backward([loss])

    return GradientSync(
        copy, group.size(), around_micro_batch, compression, find_unused, renormalised.shorten
    )


def consume_warning(group: dist.ProcessGroup, device: torch.device) -> None:
    """Have torch warn, unseen, that a module used every parameter; it warns once a process.

    Whether a foreign module uses every parameter in every batch is not known, so DDP always looks,
    and its advice not to would be wrong.
    """
    tiny = nn.Linear(1, 1, bias=False, device="meta")  # drawn from nobody's random generator
    tiny.weight = nn.Parameter(torch.zeros(1, 1, device=device))
    copy = DistributedDataParallel(
        tiny, process_group=group, init_sync=False, find_unused_parameters=True
    )
    with torch.enable_grad(), without_stderr():
        copy(torch.ones(1, 1, device=device)).sum().backward()


@contextmanager
def without_stderr() -> Iterator[None]:
    """A context in which nothing reaches the process's standard error, C++'s output included."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def sort_buckets_now(copy: DistributedDataParallel) -> None:
    """Have DDP rebuild its buckets before the first batch, in the order of the module's parameters.

    By itself it rebuilds them after the first batch, in the order in which gradients came. With
    three ranks or more the order of summation depends on a gradient's place in a bucket, so the
    first batch of a resumed run would round differently from the same batch of the uninterrupted
    run. So zero gradients are reduced here, last parameter first, as in a backward pass. A module
    that declares its anatomy lists parameters in order; DDP never rebuilds the buckets of others.
    """
    trained = [parameter for parameter in copy.module.parameters() if parameter.requires_grad]
    with torch.enable_grad():
        nothing = torch.zeros((), device=trained[0].device)
        for parameter in trained:  # what is added last gets its gradient first
            nothing = nothing + parameter.sum().to(nothing.dtype) * 0
    copy.reducer.prepare_for_backward([])
    nothing.backward()
    sort_buckets(copy)
    for parameter in trained:
        parameter.grad = None


def replicate_by_blocks(
    module: nn.Module,
    blocks: Sequence[tuple[str, nn.Module]],
    settled: SettledPlan,
    world: World,
) -> GradientSync:
    """All-reduce block by block: of tensor-parallel modules, of pipeline stages, and where 16-bit
    gradients are added up in float32, which DDP's buckets do not."""
    plan = settled.plan
    mesh, expert_mesh = world.submesh(*COPIES), world.submesh(*EXPERT_COPIES)
    alone = experts_alone(module, world)
    units = units_of(module, blocks, narrow=plan.precision.work != "float32")
    units = [unit for unit in units if not (unit.experts and alone)]
    replicated = ReplicatedParameters(module, alone)
    for unit in units:
        sharding.replicate_by_blocks(
            unit.parts,
            mesh=expert_mesh if unit.experts else mesh,
            mp_policy=mixed_policy(
                plan.precision, unit, sums_in_float32=settled.sums_gradients_in_float32
            ),
            ignored_params=replicated.all,
        )
    match_norms(module, plan.precision, world.device)
    show_outputs(module, units, plan)
    reshard_after_evaluation(module)
    assert isinstance(module, FSDPModule)

    def prepare(last: bool, uses_all: bool) -> None:
        module.set_requires_gradient_sync(last)

    return synchronise(module, units, replicated, mesh.size(), world, prepare)
