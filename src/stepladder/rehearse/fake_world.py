"""A world of N ranks of which this process plays one: collectives answer at once, and send nothing.

torch's "fake" backend leaves every result as it is. What the ranks would tell each other as
numbers on the host is answered as if all had what this one has.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from stepladder.errors import PlanError
from stepladder.plan import AXES, Layout
from stepladder.seam.process_groups import FAKE_BACKEND, clear_mesh_caches, fake_store
from stepladder.world import Place, World
from stepladder.world.ranks.rank_notes import RankNotes


class FakeWorld(World):
    """A world whose other ranks are like this one."""

    __slots__ = ()

    @property
    def notes(self) -> RankNotes:
        return RankNotes()

    def gather_counts(self, count: int) -> list[int]:
        return [count] * self.layout.data_ranks

    def gather_texts(self, text: str) -> list[str]:
        return [text] * self.place.num_ranks


@contextmanager
def fake_world(layout: Layout, rank: int, device: torch.device) -> Iterator[World]:
    """The world of a settled layout, for as long as the block lasts."""
    ranks = layout.num_ranks
    if ranks == 1:
        yield FakeWorld(Place(), device, layout)
        return
    if dist.is_initialized():
        raise PlanError(
            "rehearse",
            f"a world of {ranks} ranks is rehearsed by one process, and this one is a rank of a "
            "run",
            "Call it in a process of its own, before ranks are started.",
        )
    dist.init_process_group(FAKE_BACKEND, rank=rank, world_size=ranks, store=fake_store())
    try:
        clear_mesh_caches()
        mesh = init_device_mesh(device.type, layout.shape, mesh_dim_names=AXES)
        place = Place(rank, ranks, 0, 1, launched=True)
        with other_ranks_alike():
            yield FakeWorld(place, device, layout, mesh)
    finally:
        dist.destroy_process_group()
        clear_mesh_caches()


@contextmanager
def other_ranks_alike() -> Iterator[None]:
    """Context in which other ranks say what this one says, and DDP's buckets are reduced once full.

    The fake backend's own all-reduce returns nothing, where DDP expects the bucket; and an object
    would be read out of a tensor without numbers.
    """
    made, gather = DistributedDataParallel.__init__, dist.all_gather_object

    def make(self: DistributedDataParallel, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        self.register_comm_hook(None, already_reduced)

    DistributedDataParallel.__init__ = make  # type: ignore[method-assign]
    dist.all_gather_object = gather_alike  # type: ignore[assignment]
    try:
        yield
    finally:
        dist.all_gather_object = gather
        DistributedDataParallel.__init__ = made  # type: ignore[method-assign]


def gather_alike(every: list[Any], mine: Any, group: Any = None) -> None:
    every[:] = [mine] * len(every)


def already_reduced(state, bucket):  # DDP would refuse annotations that are texts
    answer: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    answer.set_result(bucket.buffer())
    return answer
