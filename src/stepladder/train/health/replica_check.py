"""Whether ranks that should hold the same parameters still do, bit for bit.

A flipped bit in one copy's memory, or an all-reduce that lost a message, makes copies drift apart
without any error; the loss hides it for a long time. Each rank sums the bits of what it holds, and
copies compare sums. The one that differs from most is named.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from stepladder.errors import WorldError
from stepladder.plan import Layout
from stepladder.rungs import ParameterShard, fingerprint, local, sliced_axes
from stepladder.world import World

LAST = "the last checkpoint (--run.resume true)"


@torch.no_grad()
def check_replicas(shards: Iterable[ParameterShard], world: World, step: int) -> None:
    """Raise on every rank, naming those whose parameters differ from their copies'."""
    if world.mesh is None:
        return
    parameters = [shard.parameter for shard in shards]
    mine = fingerprint(map(local, parameters))
    every = [torch.zeros_like(mine) for _ in range(world.place.num_ranks)]
    dist.all_gather(every, mine)
    refuse_deviating([int(one) for one in every], parameters, world, step, LAST)


def refuse_deviating(
    prints: list[int], parameters: Iterable[torch.Tensor], world: World, step: int, checkpoint: str
) -> None:
    """Raise where ranks that should hold the same parameters do not, by the prints of each rank's.

    Args:
        checkpoint: that the run can go on from, in words.
    """
    sliced = {axis for p in parameters if isinstance(p, DTensor) for axis in sliced_axes(p)}
    # The experts of a list are no slices of a tensor, and yet others on every rank of their axis.
    wrong = deviating(prints, world.layout, {"pipeline", "experts", *sliced})
    if wrong:
        ranks = ", ".join(map(str, wrong))
        raise WorldError(
            f"step {step}",
            f"the parameters of rank {ranks} are not those of the other copies",
            f"Go on from {checkpoint}, and test that machine's memory and network.",
        )


def deviating(prints: list[int], layout: Layout, sliced: set[str]) -> list[int]:
    """Ranks whose print differs from that of most ranks that hold the same; all where none is most.

    Args:
        sliced: the axes along which ranks hold other parameters, or other parts of them.
    """
    copies: dict[tuple[int, ...], list[int]] = {}
    for rank in range(len(prints)):
        place = layout.place(rank)
        copies.setdefault(tuple(place[axis] for axis in sorted(sliced)), []).append(rank)
    wrong = []
    for ranks in copies.values():
        (usual, votes), *others = Counter(prints[rank] for rank in ranks).most_common(2)
        tied = bool(others) and others[0][1] == votes  # nobody can tell who is wrong
        wrong += [rank for rank in ranks if tied or prints[rank] != usual]
    return sorted(wrong)
