"""What is done when memory runs out in the middle of a step: let go, shrink, or say who held it."""

from __future__ import annotations

import gc
from collections.abc import Iterable

import torch
from torch import nn

from stepladder.record import Memory
from stepladder.rungs import Piece
from stepladder.world import peak_bytes


def drop_gradients(pieces: Iterable[Piece]) -> None:
    for piece in pieces:
        piece.drop_gradient()


def release(pieces: Iterable[Piece], device: torch.device) -> None:
    """Drop what the failed try left: its gradients and its activations."""
    drop_gradients(pieces)
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def held_memory(
    module: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device, limit: int
) -> Memory:
    """Who held what when memory ran out: the state is counted, the rest were activations.

    The allocation that failed was never made, so the need is more than the peak: at least `limit`.
    """
    parameters = list(module.parameters())
    state = [value for entry in optimizer.state.values() for value in entry.values()]
    owners = {
        "parameters": size(parameters),
        "gradients": size(p.grad for p in parameters if p.grad is not None),
        "optimizer": size(value for value in state if isinstance(value, torch.Tensor)),
    }
    rest = max(peak_bytes(device), limit) - sum(owners.values())
    return Memory(**owners, activations=max(rest, 0))


def size(tensors: Iterable[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
