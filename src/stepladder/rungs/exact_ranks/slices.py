"""The slices of a global batch, which of them a rank computes, and sums over all of them.

[Note: one tree for every layout] The gradients of slices 0, 1, 2, ... are added up in a binary tree
of neighbours: ((0 + 1) + (2 + 3)) + ... A rank with whole gradients (one device, DDP, ZeRO 1)
computes neighbouring slices, adds up their subtree, and ranks add up the upper levels once a batch.
Under ZeRO 2 and 3 no rank can keep whole gradients, so slices are dealt out in turn: in each pass
the ranks compute neighbours and add them up as they reduce, and each owner of a shard adds up the
upper levels. Both are the same tree, so both give the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from stepladder.plan import SettledPlan
from stepladder.plan.layout import COPIES
from stepladder.seam.process_groups import gather_tensor
from stepladder.world import World


@dataclass(frozen=True, slots=True)
class Slices:
    """The slices that this rank computes, and the ranks that compute the others."""

    own: tuple[int, ...]  # their numbers, in the order in which they are computed
    in_turn: bool = False  # dealt out to ranks one by one, not as neighbours
    group: dist.ProcessGroup | None = None  # None: one rank computes all
    host_group: dist.ProcessGroup | None = None  # the same ranks, for numbers on the host

    @classmethod
    def of(cls, settled: SettledPlan, world: World) -> Slices:
        count, ranks, index = settled.slices, settled.data_ranks, world.data_index
        if ranks == 1:
            return cls(tuple(range(count)))
        each, group = count // ranks, world.group(*COPIES)
        host = world.host_group or group
        if settled.sliced:
            return cls(tuple(range(index, count, ranks)), True, group, host)
        return cls(tuple(range(index * each, (index + 1) * each)), False, group, host)

    def total(self, mine: Tensor) -> Tensor:
        """The sum of one value for each slice, of which this rank has its own."""
        return add_neighbours(self.in_order(mine, self.group))

    def in_order(self, mine: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        """The values of all slices by their numbers, on every rank."""
        if group is None:
            return mine
        every = mine.new_empty((group.size(), mine.numel()))
        gather_tensor(every, mine.reshape(1, -1), group=group)
        by_rank = every.view(group.size(), *mine.shape)
        return (by_rank.transpose(0, 1) if self.in_turn else by_rank).flatten(0, 1)

    def gather_numbers(self, mine: list[tuple[float, int]]) -> list[tuple[float, int]]:
        """Two numbers of every slice, without waiting for the device."""
        every = self.in_order(torch.tensor(mine, dtype=torch.float64), self.host_group)
        return [(weight, int(tokens)) for weight, tokens in every.tolist()]


def add_neighbours(values: Tensor) -> Tensor:
    """The sum along the first dimension, of a power of two, in a binary tree of neighbours."""
    while len(values) > 1:
        values = values[0::2] + values[1::2]
    return values[0]
