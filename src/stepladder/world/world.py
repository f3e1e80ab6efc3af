"""The processes of a run as one value: who they are, how they are arranged, what they add up.

A world of one answers without asking anybody, so nothing above this file tests how many ranks
there are.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from stepladder.errors import WorldError
from stepladder.plan import AXES, Layout

from .device import pick_device
from .place import Place


@dataclass(frozen=True, slots=True)
class World:
    place: Place
    device: torch.device
    layout: Layout = Layout()
    mesh: DeviceMesh | None = None  # None: a world of one

    @property
    def data_index(self) -> int:
        return self.layout.data_index(self.place.rank)

    @property
    def first(self) -> bool:
        """Whether this rank speaks for all: writes logs, plots, manifests."""
        return self.place.rank == 0

    def sum(self, value: torch.Tensor, *axes: str) -> torch.Tensor:
        """Add up a value over every rank that differs from this one only along `axes`."""
        for axis in axes:
            if self.mesh is not None and getattr(self.layout, axis) > 1:
                dist.all_reduce(value, group=self.mesh.get_group(axis))
        return value

    def submesh(self, *axes: str) -> DeviceMesh:
        """The ranks that differ from this one only along `axes`, as a mesh of one dimension."""
        assert self.mesh is not None
        used = [axis for axis in axes if getattr(self.layout, axis) > 1] or [axes[0]]
        if len(used) == 1:
            return self.mesh[used[0]]
        return self.mesh[tuple(used)]._flatten("_".join(used))

    def group(self, *axes: str) -> dist.ProcessGroup:
        return self.submesh(*axes).get_group()

    def close(self) -> None:
        if self.mesh is not None:
            dist.destroy_process_group()


def join(layout: Layout, device: str = "auto", *, timeout_seconds: float = 600) -> World:
    """Take this process's place in a world arranged as `layout`, which is settled and fits."""
    place = Place.from_environment()
    here = pick_device(device, place.local_rank)
    if not place.launched:
        return World(place, here, layout)
    if here.type == "cuda":
        torch.cuda.set_device(here)
    if not dist.is_initialized():
        meet(place, backend_for(here, place), timeout_seconds)
    mesh = init_device_mesh(here.type, layout.shape, mesh_dim_names=AXES)
    return World(place, here, layout, mesh)


def backend_for(device: torch.device, place: Place) -> str:
    """NCCL where every rank has a GPU of its own: unlike gloo it refuses two ranks on one."""
    alone = place.local_ranks <= torch.cuda.device_count()
    return "nccl" if device.type == "cuda" and alone else "gloo"


def meet(place: Place, backend: str, timeout_seconds: float) -> None:
    """Wait for the other ranks; a rank that never comes is an error, not a hang."""
    try:
        dist.init_process_group(backend, timeout=timedelta(seconds=timeout_seconds))
    except (RuntimeError, ValueError) as alone:
        raise WorldError(
            "world",
            f"rank {place.rank} of {place.num_ranks} did not meet the others "
            f"within {timeout_seconds:g} s ({str(alone).splitlines()[0]})",
            "Check that all ranks started and that MASTER_ADDR and MASTER_PORT lead to rank 0.",
        ) from alone
