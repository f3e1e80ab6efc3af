"""Measured training state of a rank: bytes of parameters, gradients and optimizer state."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from stepladder.record import Memory
from stepladder.train import Run


def measure_state(run: Run, batch: Any) -> Memory:
    """Bytes of this rank's training state when a batch's gradients are there; then they are not.

    Storages are counted, each once: what padding or a bucket adds is held as well.
    """
    run.gradients(batch.to(run.world.device))
    shards = run.climbed.shards
    gradients = storages(p.grad for p in run.module.parameters() if p.grad is not None)
    for shard in shards:
        shard.drop_gradient()
    state = [
        value
        for entry in run.optimizer.state.values()
        for name, value in entry.items()
        if isinstance(value, torch.Tensor) and name != "step"  # one number a parameter
    ]
    return Memory(
        parameters=storages(run.module.parameters()),
        gradients=gradients,
        optimizer=storages(state),
    )


def storages(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of all the memory these tensors stand in."""
    local = [t.to_local() if isinstance(t, DTensor) else t for t in tensors]
    each = {s.data_ptr(): s.nbytes() for s in (tensor.untyped_storage() for tensor in local)}
    return sum(each.values())
