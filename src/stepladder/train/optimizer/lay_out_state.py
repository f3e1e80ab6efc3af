"""An instance of an optimizer gets the parameters that this rank owns, and its state with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from stepladder.rungs import ParameterShard
from stepladder.train.checkpointing.sharded_state import shards_of_parameter

from .loose_state import loose_state


def lay_out(
    optimizer: torch.optim.Optimizer,
    names: Sequence[Sequence[str]],
    shards: Mapping[str, ParameterShard],
) -> None:
    """Have an instance update what this rank owns of its parameters, and remember as much."""
    kept = {
        name: optimizer.state[p]
        for group, members in zip(optimizer.param_groups, names)
        for name, p in zip(members, group["params"])
        if p in optimizer.state and name in shards
    }
    for group, members in zip(optimizer.param_groups, names):
        group["params"] = [shards[name].owned for name in members if name in shards]
    counts = counting_keys(kept, shards)
    loose = loose_state(optimizer)
    optimizer.state.clear()
    optimizer.state.update(loose)
    for name, state in kept.items():
        shard = shards[name]
        optimizer.state[shard.owned] = {
            key: value if key in counts else laid_out(value, shard) for key, value in state.items()
        }


def counting_keys(
    kept: Mapping[str, Mapping[str, Any]], shards: Mapping[str, ParameterShard]
) -> set[str]:
    """What is one number whatever the parameter's size: see `counting_keys` of optimizer_state."""
    return {"step"} | {
        key
        for name, state in kept.items()
        for key, value in state.items()
        if isinstance(value, Tensor) and not value.dim() and shards[name].parameter.dim()
    }


def laid_out(value: Any, shard: ParameterShard) -> Any:
    """A value kept for a whole parameter: this rank's part of it, where it has the same shape."""
    if not isinstance(value, Tensor) or value.shape != shard.parameter.shape:
        return value
    if value.shape == shard.owned.shape and value.device == shard.owned.device:
        return value
    part = torch.empty_like(shard.owned, dtype=value.dtype)
    for piece in shards_of_parameter("", shard, part, mine=True):
        piece.tensor.copy_(piece.slice.view(value))
    return part.detach()
