"""A world of N ranks of which this process plays one: collectives answer at once, and send nothing.

torch's "fake" backend leaves every result as it is. What the ranks would tell each other as
numbers on the host is answered as if all had what this one has. Pipeline stages do tell each other
what others do not know, the shapes that they send on: what a stage said when it was played is kept
for those that are played after it, and a stage that was not played says what the last one said.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from torch.utils import swap_tensors

from stepladder.errors import PlanError
from stepladder.plan import AXES, Layout
from stepladder.rungs.data_parallel import ddp
from stepladder.rungs.experts.exchange import ExpertRanks
from stepladder.rungs.pipeline import remote_activation
from stepladder.seam.process_groups import FAKE_BACKEND, clear_mesh_caches, fake_store
from stepladder.seam.sharding import real_meshes
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


@dataclass(slots=True)
class Broadcasts:
    """What ranks told the others in objects, in the order of the calls."""

    by_call: dict[int, list[Any]] = field(default_factory=dict)
    calls: int = 0  # of the rank that is being played

    def broadcast(self, told: list[Any], src: int | None = None, *given: Any, **more: Any) -> None:
        """As torch's broadcast_object_list: the source says, and others hear what it said."""
        group, group_src = more.get("group"), more.get("group_src", src)
        self.calls += 1
        if dist.get_rank(group) == group_src or all(one is not None for one in told):
            self.by_call[self.calls] = list(told)
        else:
            earlier = [call for call in self.by_call if call <= self.calls]
            told[:] = self.by_call[max(earlier)] if earlier else told


@contextmanager
def fake_world(
    layout: Layout, rank: int, device: torch.device, broadcasts: Broadcasts
) -> Iterator[World]:
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
        broadcasts.calls = 0
        with other_ranks_equal(broadcasts), real_meshes():
            yield FakeWorld(place, device, layout, mesh)
    finally:
        dist.destroy_process_group()
        clear_mesh_caches()


@contextmanager
def other_ranks_equal(broadcasts: Broadcasts) -> Iterator[None]:
    """Context in which other ranks say what this one says, and DDP's buckets are reduced once full.

    The fake backend's own all-reduce returns nothing, where DDP expects the bucket; and an object
    would be read out of a tensor without numbers.
    """
    made, gather = DistributedDataParallel.__init__, dist.all_gather_object
    broadcast, sort = dist.broadcast_object_list, ddp.sort_buckets_now
    swap, numbers = remote_activation.swap_tensors, ExpertRanks.row_numbers

    def make(self: DistributedDataParallel, *args: Any, **kwargs: Any) -> None:
        if not kwargs.get("find_unused_parameters"):
            ddp.consume_warning(kwargs["process_group"], torch.device("cpu"))
        # Only buckets that look for unused parameters are never arranged anew, by numbers.
        made(self, *args, **{**kwargs, "find_unused_parameters": True})
        self.register_comm_hook(None, already_reduced)

    DistributedDataParallel.__init__ = make  # type: ignore[method-assign]
    dist.all_gather_object = gather_equal  # type: ignore[assignment]
    dist.broadcast_object_list = broadcasts.broadcast  # type: ignore[assignment]
    ddp.sort_buckets_now = lambda copy: None  # it reduces numbers
    remote_activation.swap_tensors = swap_watched
    ExpertRanks.row_numbers = balanced  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        ExpertRanks.row_numbers = numbers  # type: ignore[method-assign]
        remote_activation.swap_tensors = swap
        ddp.sort_buckets_now = sort
        dist.broadcast_object_list = broadcast
        dist.all_gather_object = gather
        DistributedDataParallel.__init__ = made  # type: ignore[method-assign]


def swap_watched(one: torch.Tensor, other: torch.Tensor) -> None:
    """Swap tensors although torch's fake mode has weak references to them: they have no numbers."""
    with mock.patch("weakref.getweakrefs", lambda tensor: []):
        swap_tensors(one, other)


def balanced(
    ranks: ExpertRanks, mine: torch.Tensor, theirs: torch.Tensor, rows: int | None
) -> list[list[int]]:
    """As many rows to each rank as to any other, and as many back: no router has decided."""
    if rows is None:
        raise PlanError(
            "rehearse",
            "what experts in a list are called with depends on numbers",
            "Use the forecast, or measure the step.",
        )
    each = [rows // ranks.ways + (rank < rows % ranks.ways) for rank in range(ranks.ways)]
    return [each, each]


def gather_equal(every: list[Any], mine: Any, group: Any = None) -> None:
    every[:] = [mine] * len(every)


def already_reduced(state, bucket):  # DDP would refuse annotations that are texts
    answer: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    answer.set_result(bucket.buffer())
    return answer
