"""Sequence parallel: the residual stream between blocks, split along the sequence by tensor rank.

It is whole before the first block and after the last, so that what a foreign model does there with
lengths and masks stays right. Where ranks have slices, each draws its own random numbers; outside,
where all have the same values, all draw the same.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard

from stepladder.errors import DataError
from stepladder.world import seed_generators

from .local_compute import change_first, move

SEQUENCE = Shard(1)  # of (batch, length, width)


def slice_residual_stream(
    first: nn.Module, last: nn.Module, mesh: DeviceMesh, device: torch.device
) -> None:
    """Slice what flows into the first block, and gather what flows out of the last."""
    draws = PerRankRandom(mesh, device)
    gather = partial(move, mesh=mesh, source=SEQUENCE, target=Replicate(), gradient=Replicate())

    def start(block: nn.Module, args: Any, kwargs: Any) -> Any:
        if block.training:
            draws.start()
        return change_first(partial(slice_sequence, mesh=mesh), args, kwargs)

    def end(block: nn.Module, args: Any, made: Any) -> Any:
        if block.training:
            draws.end()
        # Cloned, because what torch gives back is a view and must not be changed in place.
        whole = change_first(gather, made if isinstance(made, tuple) else (made,), {})[0]
        return whole if isinstance(made, tuple) else whole[0].clone()

    first.register_forward_pre_hook(start, with_kwargs=True)
    last.register_forward_hook(end)


def slice_sequence(stream: Tensor, mesh: DeviceMesh) -> Tensor:
    length, ways = stream.shape[1], mesh.size()
    if length % ways:
        raise DataError(
            "sequence",
            f"{length} tokens do not divide by tensor={ways}, which slices them",
            f"Use sequences of {max(length // ways, 1) * ways}.",
        )
    return move(stream, mesh, Replicate(), SEQUENCE, SEQUENCE)


class PerRankRandom:
    """Random numbers of each rank's own between start and end, and everybody's same outside."""

    def __init__(self, mesh: DeviceMesh, device: torch.device) -> None:
        self.mesh, self.device = mesh, device
        self.states: list[Tensor] = []

    @property
    def generators(self) -> list[torch.Generator]:
        if self.device.type != "cuda":
            return [torch.default_generator]
        return [torch.default_generator, torch.cuda.default_generators[self.device.index or 0]]

    @torch.compiler.disable
    def start(self) -> None:
        number = int(torch.randint(2**62, ()))  # drawn by all alike, so the next pass's differs
        self.states = [generator.get_state() for generator in self.generators]
        seed_generators(self.device, number, "tensor", self.mesh.get_local_rank())

    @torch.compiler.disable
    def end(self) -> None:
        for generator, state in zip(self.generators, self.states):
            generator.set_state(state)
