"""The data order: shuffled alike on all ranks, and resumed in the middle of an epoch.

In an epoch every sample is read once, in a new order. With several ranks that takes an agreement,
and nobody needs to talk for it: if the order is a function of seed and epoch alone, every rank can
compute it and take its own part.

A run that is stopped in the middle of an epoch should go on with the samples that are left, none
twice and none left out. So it saves how many samples were read, by all ranks together, and not how
many steps a rank has made: after a failure there may be fewer ranks. And 103 samples do not divide
into steps of 8: a step that finds only 7 samples left takes its last one from the next epoch.

Claim: four ranks read 5 steps of 8 samples, then two ranks go on to the end of the second epoch of
103: every sample was read twice, and the orders of the epochs differ. stepladder.data.SampleOrder
reads any source so, without holding the order in memory.

Predict: After 20 steps of 8 samples from 103, how many samples of the second epoch have been read?
[read of epoch; steps = 20]

Often wrong:
- each rank shuffles with a seed of its own
- every epoch has the same order
- a rank's own samples are counted instead of all ranks'
- the last samples of an epoch are dropped
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from stepladder.labs.equipment.lab_ranks import on_ranks

LENGTH, BATCH, SEED = 103, 8, 0


def epoch_order(epoch: int, rank: int) -> list[int]:
    """The order of an epoch, as this rank knows it."""
    # >>> Every sample once, in an order that all ranks know and no other epoch has.
    # ??? torch.randperm takes a generator, and a generator a seed.
    # ??? Of what may that seed depend, and of what not?
    # ??? Two epochs next to each other should not be alike: SEED and the epoch both count.
    random = torch.Generator().manual_seed(1000 * SEED + epoch)
    return torch.randperm(LENGTH, generator=random).tolist()
    # <<< random = torch.Generator().manual_seed(rank)
    # <<< return torch.randperm(LENGTH, generator=random).tolist()


def sample_at(position: int, rank: int) -> int:
    """The sample at a position of the run: after one epoch comes the next."""
    # >>> Look the position up in the order of its epoch.
    # ??? Position 103 is the first of the second epoch.
    # ??? divmod gives both: which epoch, and which place in it.
    epoch, place = divmod(position, LENGTH)
    return epoch_order(epoch, rank)[place]
    # <<< return epoch_order(0, rank)[position % LENGTH]


def positions(first: int, rank: int, num_ranks: int) -> list[int]:
    """This rank's positions in the step that begins at position `first` of the run."""
    # >>> This rank's part of the step's BATCH positions, which are one after the other.
    # ??? The step's positions are the same for any number of ranks: where do they begin and end?
    # ??? Deal them out in turn: the rank says where to begin, the number of ranks how far to go.
    return list(range(first + rank, first + BATCH, num_ranks))
    # <<< return list(range(first, first + BATCH // num_ranks))


def read(state: dict[str, int], num_steps: int, rank: int, num_ranks: int) -> Iterator[list[int]]:
    """This rank's samples, step by step; the state is kept up to date, and is all that is saved."""
    for _ in range(num_steps):
        yield [sample_at(position, rank) for position in positions(state["read"], rank, num_ranks)]
        # >>> What a resumed run has to know: how many samples all ranks have read.
        # ??? How many did this rank read in the step, and how many did all of them?
        # ??? Should the number depend on how many ranks there are?
        state["read"] += BATCH
        # <<< pass


def read_on_ranks(first: int, num_steps: int) -> tuple[list[list[int]], int]:
    """What all ranks read from there on, step by step, and how many samples are read then."""
    state, steps = {"read": first}, []
    for mine in read(state, num_steps, dist.get_rank(), dist.get_world_size()):
        everyones: list[list[int]] = [[] for _ in range(dist.get_world_size())]
        dist.all_gather_object(everyones, mine)
        steps.append([sample for samples in everyones for sample in samples])
    return steps, state["read"]


def measure() -> list[dict[str, Any]]:
    rows, first = [], 0
    for ranks, num_steps in ((4, 5), (2, 15), (2, 6)):
        steps, first = on_ranks(read_on_ranks, ranks, first, num_steps)[0]
        row = {"ranks": ranks, "steps": first // BATCH, "epoch": 1 + first // LENGTH}
        again = sum(len(step) - len(set(step)) for step in steps)
        rows.append({**row, "read of epoch": first % LENGTH, "twice in a step": again})
    return rows


if __name__ == "__main__":
    for row in measure():
        print(row)
