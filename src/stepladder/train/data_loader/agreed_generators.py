"""Random generators for choosing samples, in the same state on every rank.

A sampler draws from the generators of its process, which ranks seed differently. So what it draws
comes from copies of rank 0's generators, which are in use only while the next batch is chosen: the
generators of the training step never move.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor

from stepladder.train.checkpointing.rng_state import read_generators, set_generators
from stepladder.world import World

CPU = torch.device("cpu")


class AgreedGenerators:
    """Generators that start as rank 0's are now; every rank makes them at the same time."""

    def __init__(self, world: World) -> None:
        self.states = read_generators(CPU)
        if world.mesh is not None:
            with world.explain_hangs():
                for state in self.states.values():
                    dist.broadcast(state, 0, group=world.host_group)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Context in which the generators of torch, numpy and Python are these."""
        before: dict[str, Tensor] = read_generators(CPU)
        set_generators(self.states, CPU)
        try:
            yield
        finally:
            self.states = read_generators(CPU)
            set_generators(before, CPU)
