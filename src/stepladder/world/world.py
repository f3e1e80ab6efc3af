"""The processes of a run as one value: who they are, how they are arranged, what they add up.

A world of one answers without asking anybody, so nothing above this file tests how many ranks
there are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from itertools import count

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from stepladder.errors import LostRank, WorldError
from stepladder.plan import AXES, Layout
from stepladder.seam.process_groups import clear_mesh_caches, default_store, set_timeout
from stepladder.seam.sharding import flatten
from stepladder.world.machine.device import pick_device
from stepladder.world.ranks.agreement import compare_ranks, fingerprints
from stepladder.world.ranks.hang_watchdog import Watch, watch_ranks
from stepladder.world.ranks.rank_notes import Board

from .launcher_environment import Place


@dataclass(frozen=True, slots=True)
class World:
    place: Place
    device: torch.device
    layout: Layout = Layout()
    mesh: DeviceMesh | None = None  # None: a world of one
    watch: Watch | None = None  # over the other ranks, where there are any

    @property
    def data_index(self) -> int:
        return self.layout.data_index(self.place.rank)

    @property
    def first(self) -> bool:
        """Whether this rank speaks for all: writes logs, plots, manifests."""
        return self.place.rank == 0

    @property
    def board(self) -> Board:
        """Where ranks leave notes for each other."""
        return Board() if self.mesh is None else Board.shared()

    def sum(self, value: torch.Tensor, *axes: str) -> torch.Tensor:
        """Add up a value over every rank that differs from this one only along `axes`."""
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

    def sum_later(self, value: torch.Tensor, *axes: str) -> Callable[[], torch.Tensor]:
        """Begin to add a value up over `axes`; calling what comes back waits for the sum.

        What a rank does meanwhile hides that others are not there yet.
        """
        if self.mesh is None or all(getattr(self.layout, axis) == 1 for axis in axes):
            return lambda: value
        work = dist.all_reduce(value, group=self.group(*axes), async_op=True)

        def wait() -> torch.Tensor:
            work.wait()
            return value

        return wait

    def submesh(self, *axes: str) -> DeviceMesh:
        """The ranks that differ from this one only along `axes`, as a mesh of one dimension."""
        assert self.mesh is not None
        used = [axis for axis in axes if getattr(self.layout, axis) > 1] or [axes[0]]
        if len(used) == 1:
            return self.mesh[used[0]]
        return flatten(self.mesh[tuple(used)], "_".join(used))

    def group(self, *axes: str) -> dist.ProcessGroup:
        return self.submesh(*axes).get_group()

    def explaining(self) -> AbstractContextManager[None]:
        """Context in which a rank that ended or hangs is named by those that wait for it."""
        return self.watch.explaining() if self.watch else nullcontext()

    def end_others(self, said: str) -> None:
        """Have ranks that wait for this one in a collective end, with a sentence: it will not come.

        A collective cannot be left half-way. gloo's `abort` closes no connection before the group
        itself is gone, and with NCCL an update may be queued behind the collective that is cut.
        """
        if self.watch:
            self.watch.end_others(said)

    def close(self) -> None:
        if self.watch:
            self.watch.close()
        if self.mesh is not None:
            dist.destroy_process_group()


WORLDS = count()  # that this process was part of before


def join(
    layout: Layout, device: str = "auto", *, timeout_seconds: float = 600, plan: str = ""
) -> World:
    """Take this process's place in a world arranged as `layout`, which is settled and fits."""
    facts = {"plan": plan, "layout": str(layout)}
    place, here = gather(device, timeout_seconds=timeout_seconds, facts=facts)
    if not place.launched:
        return World(place, here, layout)
    if next(WORLDS):
        forget_routes()
    mesh = init_device_mesh(here.type, layout.shape, mesh_dim_names=AXES)
    for group in (dist.group.WORLD, *map(mesh.get_group, AXES)):
        set_timeout(limit(dist.get_backend(), timeout_seconds), group)
    watch = watch_ranks(place, timeout_seconds) if place.num_ranks > 1 else None
    return World(place, here, layout, mesh, watch)


def forget_routes() -> None:
    """Have torch work out anew how tensors lie on ranks and travel between them.

    It remembers that by a mesh's shape, together with the groups and the place of an earlier world
    of this process, which ended; and the groups keep their threads and connections for as long.
    """
    # Loaded here: its tools bring the whole compiler along, a second of every rank's start.
    clear_mesh_caches()


def gather(
    device: str, *, timeout_seconds: float, facts: Mapping[str, str]
) -> tuple[Place, torch.device]:
    """Meet the other ranks, where there are any, and see that all were given the same."""
    place = Place.from_environment()
    here = pick_device(device, place.local_rank)
    if place.launched:
        if here.type == "cuda":
            torch.cuda.set_device(here)
        if not dist.is_initialized():
            meet(place, backend_for(here, place), timeout_seconds)
        known = {**fingerprints(), **facts}
        compare_ranks(default_store(), place, known, timeout_seconds)
    return place, here


def backend_for(device: torch.device, place: Place) -> str:
    """NCCL where every rank has a GPU of its own: unlike gloo it refuses two ranks on one."""
    alone = place.local_ranks <= torch.cuda.device_count()
    return "nccl" if device.type == "cuda" and alone else "gloo"


def limit(backend: str, timeout_seconds: float) -> timedelta:
    """How long the backend waits; NCCL's end says little, so that our watch speaks before it."""
    return timedelta(seconds=timeout_seconds + 60 * (backend == "nccl"))


def meet(place: Place, backend: str, timeout_seconds: float) -> None:
    """Wait for the other ranks; a rank that never comes is an error, not a hang."""
    try:
        dist.init_process_group(backend, timeout=limit(backend, timeout_seconds))
    except (RuntimeError, ValueError) as alone:
        # What stands in the environment is somebody's mistake; who did not come may come yet.
        kind = WorldError if isinstance(alone, ValueError) else LostRank
        raise kind(
            "world",
            f"rank {place.rank} of {place.num_ranks} did not meet the others "
            f"within {timeout_seconds:g} s ({str(alone).splitlines()[0]})",
            "Check that all ranks started and that MASTER_ADDR and MASTER_PORT lead to rank 0.",
        ) from alone
