"""Random generators for choosing samples, in the same state on every rank.

A sampler draws from the generators of its process, which a script may seed by rank. So what it
draws comes from copies of rank 0's generators, which are in use only while the next batch is
chosen. Where one of a rank's own is the same and nothing else draws from it meanwhile, it moves
along, as it does in one process: the next epoch then has the same order on any number of ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist

from stepladder.train.checkpointing.rng_state import read_generators, set_generators
from stepladder.world import World

CPU = torch.device("cpu")


class AgreedGenerators:
    """Generators that start as rank 0's are now; every rank makes them at the same time."""

    def __init__(self, world: World) -> None:
        self.states, own = read_generators(CPU), read_generators(CPU)
        if world.mesh is not None:
            with world.explain_hangs():
                for state in self.states.values():
                    dist.broadcast(state, 0, group=world.host_group)
        # What this rank's own were left as, of those that are as rank 0's.
        self.left = {name: state for name, state in own.items() if state.equal(self.states[name])}

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Context in which the generators of torch, numpy and Python are these."""
        before = read_generators(CPU)
        apart = {
            name: state
            for name, state in before.items()
            if name not in self.left or not state.equal(self.left[name])
        }
        set_generators(self.states, CPU)
        try:
            yield
        finally:
            self.states = read_generators(CPU)
            self.left = {name: self.states[name] for name in self.states if name not in apart}
            set_generators({**self.states, **apart}, CPU)
