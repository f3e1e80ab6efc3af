"""Building compact Adam for what this rank owns."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from stepladder.plan import SettledPlan
from stepladder.rungs import Climbed, ParameterShard
from stepladder.train.checkpointing.sharded_state import contiguous_slices, saved_name
from stepladder.train.optimizer.build_optimizer import make_groups

from .compact_adam import CompactAdam, Identity


def make_compact(
    settled: SettledPlan,
    climbed: Climbed,
    masters: Mapping[nn.Parameter, torch.Tensor],
    seed: int,
) -> CompactAdam:
    """The optimizer of this rank."""
    how = settled.plan.optimizer
    owned = [(shard.name, shard.owned) for shard in climbed.shards]
    named = owned or [("", nn.Parameter(torch.empty(0)))]  # as in build_optimizer
    return CompactAdam(
        make_groups(how, named, climbed.anatomy.blocks),
        masters,
        bytes_each=settled.plan.state,
        identities={shard.owned: identity_of(shard, climbed) for shard in climbed.shards},
        seed=seed,
        decoupled=how.name == "adamw",
        lr=how.lr,
        betas=how.betas,
        eps=how.eps,
        weight_decay=how.wd,
    )


def identity_of(shard: ParameterShard, climbed: Climbed) -> Identity:
    """A parameter's name, and where this rank's elements of it begin.

    They follow each other in the whole parameter but where a cut goes through its rows; there
    every rank draws its own.
    """
    name, whole = saved_name(shard.name, climbed), shard.parameter
    first, *_ = [start for start, _ in contiguous_slices(whole)] or [(0,) * whole.dim()]
    place = 0
    for index, size in zip(first, whole.shape):
        place = place * size + index
    return Identity(name, place + (shard.flat.start if shard.flat else 0))
