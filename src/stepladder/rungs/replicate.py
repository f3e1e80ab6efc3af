"""Rung: whole copies of the model, each learning from other samples (torch's DDP).

Gradients are reduced in buckets while backward still runs, in the last pass of a batch only.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from stepladder.plan import Plan
from stepladder.world import World

from .exchange import Exchange

COPIES = ("replicate", "shard", "context")  # axes along which ranks hold the same parameters


def replicate(module: nn.Module, plan: Plan, world: World) -> Exchange:
    """The module as one of several copies that end every step alike."""
    group = world.group(*COPIES)
    copy = DistributedDataParallel(
        module,
        process_group=group,
        # Buckets share memory with `.grad`: no second copy of the gradients.
        gradient_as_bucket_view=True,
        # Running statistics are each copy's own, as they are each pass's own on one device.
        broadcast_buffers=False,
        find_unused_parameters=True,
    )

    def passing(last: bool) -> AbstractContextManager[Any]:
        return nullcontext() if last else copy.no_sync()

    return Exchange(copy, group.size(), passing)
