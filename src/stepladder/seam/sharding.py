"""Meshes with joined axes, and parameters cut over them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any
from unittest import mock

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.tensor import DTensor, Placement

from .lookup import find, has, reach

NO_MODES = "torch.utils._python_dispatch._disable_current_modes"
NO_OVERRIDES = "torch._C.DisableTorchFunction"
FLATTEN = "torch.distributed.device_mesh.DeviceMesh._flatten"
JOIN = "torch.distributed.device_mesh.DeviceMesh._concatenate"
STRIDED = "torch.distributed.tensor.placement_types._StridedShard"
OFFSET = "torch.distributed.tensor._utils.compute_local_shape_and_global_offset"
CUT = "torch.distributed.fsdp._fully_shard._fsdp_param._chunk_with_empty"
REPLICATE = "torch.distributed._composable.replicate_with_fsdp.replicate"


@contextmanager
def real_meshes() -> Iterator[None]:
    """Context in which meshes know their ranks, although tensors that are made have no numbers."""
    methods: dict[str, Any] = {
        "__init__": outside_modes(DeviceMesh.__init__),
        "__getitem__": outside_modes(DeviceMesh.__getitem__),
        FLATTEN.rpartition(".")[2]: outside_modes(find(FLATTEN)),
        JOIN.rpartition(".")[2]: staticmethod(outside_modes(find(JOIN))),
    }
    with mock.patch.multiple(DeviceMesh, **methods):
        yield


def outside_modes(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which no mode watches that looks at operations or calls."""

    @wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        with find(NO_MODES)(), find(NO_OVERRIDES)():
            return function(*args, **kwargs)

    return called


def flatten(mesh: DeviceMesh, name: str) -> DeviceMesh:
    """All axes of a mesh as one, under a new name."""
    return current(FLATTEN)(mesh, name)


def join(meshes: list[DeviceMesh]) -> DeviceMesh:
    """Meshes of one root as one with all their axes."""
    return current(JOIN)(meshes)


def current(path: str) -> Any:
    """What stands under a listed path now: `real_meshes` replaces some of it."""
    find(path)  # refused by name where it is gone
    return reach(path)


def strided_shard(dim: int, parts: int) -> Placement:
    """Each of so many equal parts along `dim` cut over the ranks by itself."""
    return find(STRIDED)(dim, split_factor=parts)


def is_strided(placement: Any) -> bool:
    """Whether a placement is of the kind `strided_shard` makes."""
    return has(STRIDED) and isinstance(placement, find(STRIDED))


def local_slice(tensor: DTensor, placements: list[Placement]) -> tuple[tuple[int, ...], ...]:
    """The size of this rank's part of a tensor so placed, and where it begins in the whole."""
    size, start = find(OFFSET)(tensor.shape, tensor.device_mesh, placements)
    return tuple(size), tuple(start)


def replicate_by_blocks(
    parts: list[nn.Module],
    mesh: DeviceMesh,
    mp_policy: MixedPrecisionPolicy,
    ignored_params: set[nn.Parameter],
) -> None:
    """Have FSDP2 reduce the gradients of whole copies, block by block."""
    find(REPLICATE)(parts, mesh=mesh, mp_policy=mp_policy, ignored_params=ignored_params)


class Slices:
    """A tensor cut along a dim, as torch.chunk would, of which each slice is cut when asked for."""

    def __init__(self, tensor: Tensor, num_chunks: int, dim: int) -> None:
        self.tensor, self.dim = tensor, dim
        self.size = -(-tensor.size(dim) // num_chunks)

    def __getitem__(self, index: int) -> Tensor:
        start, whole = index * self.size, self.tensor.size(self.dim)
        if start >= whole:
            return self.tensor.new_empty(0)
        return self.tensor.narrow(self.dim, start, min(self.size, whole - start))


@contextmanager
def own_slices_alone() -> Iterator[None]:
    """A block in which FSDP2 cuts of a parameter only the slices that it reads: not one a rank."""
    if not has(CUT):
        yield
        return
    module, _, name = CUT.rpartition(".")
    with mock.patch.object(reach(module), name, Slices):
        yield
