"""The ranks of a run as one value: their layout, device mesh, groups and sums.

A world of one rank does the same without communication, so no code above this file tests how many
ranks there are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.rendezvous import rendezvous

from stepladder.errors import LostRank, WorldError
from stepladder.plan import AXES, Layout
from stepladder.seam.process_groups import clear_mesh_caches, default_store, set_timeout
from stepladder.seam.sharding import flatten
from stepladder.world.machine.device import pick_device
from stepladder.world.ranks.agreement import compare_ranks, fingerprints
from stepladder.world.ranks.hang_watchdog import HangWatchdog, watchdog_for
from stepladder.world.ranks.rank_notes import RankNotes

from .launcher_environment import Place


@dataclass(frozen=True, slots=True)
class World:
    """This rank's device and place, and the layout and mesh of all ranks."""

    place: Place
    device: torch.device
    layout: Layout = Layout()
    mesh: DeviceMesh | None = None  # None: a single rank
    watchdog: HangWatchdog | None = None  # if there are other ranks
    host_group: dist.ProcessGroup | None = None  # all ranks, for numbers that the host needs

    @property
    def data_index(self) -> int:
        return self.layout.data_index(self.place.rank)

    @property
    def is_rank_zero(self) -> bool:
        """Whether this rank writes the logs, plots and manifests of the run."""
        return self.place.rank == 0

    @property
    def notes(self) -> RankNotes:
        """The store in which ranks leave notes for each other."""
        return RankNotes() if self.mesh is None else RankNotes.shared()

    def sum(self, value: torch.Tensor, *axes: str) -> torch.Tensor:
        """All-reduce a value over the ranks that differ from this one only along `axes`."""
        for axis in axes:
            if self.mesh is not None and getattr(self.layout, axis) > 1:
                dist.all_reduce(value, group=self.mesh.get_group(axis))
        return value

    def max(self, value: torch.Tensor, *axes: str) -> torch.Tensor:
        """The largest value of any rank that differs from this one only along `axes`."""
        for axis in axes:
            if self.mesh is not None and getattr(self.layout, axis) > 1:
                dist.all_reduce(value, dist.ReduceOp.MAX, group=self.mesh.get_group(axis))
        return value

    def sum_async(self, value: torch.Tensor, *axes: str) -> Callable[[], torch.Tensor]:
        """Start summing a value over `axes`; call the returned function to wait for the sum.

        What the rank computes in between hides the wait for slower ranks.
        """
        if self.mesh is None or all(getattr(self.layout, axis) == 1 for axis in axes):
            return lambda: value
        work = dist.all_reduce(value, group=self.group(*axes), async_op=True)

        def wait() -> torch.Tensor:
            work.wait()
            return value

        return wait

    def gather_counts(self, count: int) -> list[int]:
        """A number of every data rank, without waiting for the device."""
        counts = torch.full((self.layout.data_ranks,), torch.iinfo(torch.int64).min)
        counts[self.data_index] = count
        if self.mesh is not None and self.layout.data_ranks > 1:
            with self.explain_hangs():
                dist.all_reduce(counts, dist.ReduceOp.MAX, group=self.host_group)
        return counts.tolist()

    def gather_texts(self, text: str) -> list[str]:
        """A text of every rank."""
        if self.mesh is None:
            return [text]
        texts = [""] * self.place.num_ranks
        with self.explain_hangs():
            dist.all_gather_object(texts, text, group=self.host_group)
        return texts

    def submesh(self, *axes: str) -> DeviceMesh:
        """The ranks that differ from this one only along `axes`, as a mesh of one dimension."""
        assert self.mesh is not None
        used = [axis for axis in axes if getattr(self.layout, axis) > 1] or [axes[0]]
        if len(used) == 1:
            return self.mesh[used[0]]
        return flatten(self.mesh[tuple(used)], "_".join(used))

    def group(self, *axes: str) -> dist.ProcessGroup:
        return self.submesh(*axes).get_group()

    def explain_hangs(self) -> AbstractContextManager[None]:
        """Context in which a failed collective raises an error that names the missing rank."""
        return self.watchdog.explain_hangs() if self.watchdog else nullcontext()

    def during_step(self) -> AbstractContextManager[None]:
        """Context that all ranks leave with an error once one of them does."""
        return self.watchdog.failure.during_step() if self.watchdog else nullcontext()

    def end_others(self, reason: str) -> None:
        """End the ranks that wait for this one in a collective it will not join.

        A collective cannot be cancelled. gloo's `abort` closes no connection before the group is
        destroyed, and with NCCL an update may be queued behind the cancelled collective.
        """
        if self.watchdog:
            self.watchdog.end_others(reason)

    def close(self) -> None:
        if self.watchdog:
            self.watchdog.close()
        if self.mesh is not None:
            dist.destroy_process_group()


WORLDS = count()  # earlier worlds of this process


def join_world(
    layout: Layout, device: str = "auto", *, timeout_seconds: float = 600, plan: str = ""
) -> World:
    """Connect this process to the other ranks and arrange them as `layout`, which is settled."""
    facts = {"plan": plan, "layout": str(layout)}
    place, here = connect(device, timeout_seconds=timeout_seconds, facts=facts)
    if not place.launched:
        return World(place, here, layout)
    if next(WORLDS):
        forget_routes()
    mesh = init_device_mesh(here.type, layout.shape, mesh_dim_names=AXES)
    for group in (dist.group.WORLD, *map(mesh.get_group, AXES)):
        set_timeout(backend_timeout(dist.get_backend(), timeout_seconds), group)
    watchdog = watchdog_for(place, timeout_seconds) if place.num_ranks > 1 else None
    host = None if dist.get_backend() == "gloo" else dist.new_group(backend="gloo")
    return World(place, here, layout, mesh, watchdog, host)


def forget_routes() -> None:
    """Have torch work out anew how tensors lie on ranks and travel between them.

    It remembers that by a mesh's shape, together with the groups and the place of an earlier world
    of this process, which ended; and the groups keep their threads and connections for as long.
    """
    # Loaded here: its tools bring the whole compiler along, a second of every rank's start.
    clear_mesh_caches()


def connect(
    device: str, *, timeout_seconds: float, facts: Mapping[str, str]
) -> tuple[Place, torch.device]:
    """Connect to the other ranks, if any, and check that all run the same code and plan."""
    place = Place.from_environment()
    here = pick_device(device, place.local_rank)
    if place.launched:
        if here.type == "cuda":
            torch.cuda.set_device(here)
        if not dist.is_initialized():
            wait_for_ranks(place, backend_for(here, place), timeout_seconds)
        known = {**fingerprints(), **facts}
        compare_ranks(default_store(), place, known, timeout_seconds)
    return place, here


def backend_for(device: torch.device, place: Place) -> str:
    """NCCL if every rank has its own GPU: unlike gloo it refuses two ranks on one."""
    own_gpu = place.local_ranks <= torch.cuda.device_count()
    return "nccl" if device.type == "cuda" and own_gpu else "gloo"


def backend_timeout(backend: str, timeout_seconds: float) -> timedelta:
    """The backend's time-out; longer for NCCL, so that our watchdog reports the hang first."""
    return timedelta(seconds=timeout_seconds + 60 * (backend == "nccl"))


def meeting_point(timeout: timedelta) -> dict[str, Any]:
    """Where ranks leave their addresses, as arguments of torch.

    The store outlives a process group, and torch leaves addresses under the same names each time:
    a rank would connect to where another listened before the group was destroyed. So each group has
    names of its own; every rank counts its groups in the store, and all come to the same number.
    """
    store, rank, size = next(rendezvous("env://", timeout=timeout))
    number = store.add(f"stepladder/groups/{rank}", 1)
    apart = dist.PrefixStore(f"stepladder/group/{number}", store)
    return {"store": apart, "rank": rank, "world_size": size}


def wait_for_ranks(place: Place, backend: str, timeout_seconds: float) -> None:
    """Create the process group; a rank that never connects is an error, not a hang."""
    timeout = backend_timeout(backend, timeout_seconds)
    try:
        dist.init_process_group(backend, timeout=timeout, **meeting_point(timeout))
    except (RuntimeError, ValueError) as alone:
        # A ValueError is a mistake in the environment; a missing rank may still come.
        kind = WorldError if isinstance(alone, ValueError) else LostRank
        raise kind(
            "world",
            f"rank {place.rank} of {place.num_ranks} did not meet the others "
            f"within {timeout_seconds:g} s ({str(alone).splitlines()[0]})",
            "Check that all ranks started and that MASTER_ADDR and MASTER_PORT lead to rank 0.",
        ) from alone
