"""The shards of the model and of the optimizer's state that this rank saves and loads.

A checkpoint stores each tensor in slices and says where each lies in the whole tensor, so a run on
other ranks, or in another layout, finds whatever part it needs. If several ranks hold the same
slice, one of them writes it; which one follows from the layout and differs from tensor to tensor,
so that all ranks write about as much.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard

from stepladder.checkpoint import TensorSlice, whole_slice
from stepladder.checkpoint.tensor_slice import slices_of_range
from stepladder.errors import RecordError
from stepladder.model import Anatomy
from stepladder.plan import AXES
from stepladder.rungs import Climbed, ParameterShard, local, sliced_axes
from stepladder.rungs.data_parallel.broadcast_parameters import is_strided as is_dense
from stepladder.rungs.loss_module import PREFIX as LOSS
from stepladder.rungs.parameter_shards import parameters_apart
from stepladder.seam.modules import persistent_buffers
from stepladder.seam.sharding import is_strided, local_slice
from stepladder.train.optimizer.compact.compact_adam import CompactAdam, state_of
from stepladder.world import World

from .plain_values import encode

PLAIN = "plain"  # what an optimizer keeps for a parameter that is no tensor, as bytes


@dataclass(frozen=True, slots=True)
class StateShard:
    """A slice of one saved tensor, as this rank holds it."""

    name: str  # "model/…", "loss/…" or "optimizer/parameter/…"
    shape: tuple[int, ...]  # of the whole tensor
    slice: TensorSlice  # where it lies in the whole tensor
    tensor: Tensor  # the numbers; writing into it changes the run
    mine: bool = True  # to write; else another rank that holds the same does
    fresh: bool = False  # made for a save: writing into it changes nothing

    @property
    def key(self) -> str:
        """Its name in a file: the tensor's own where all of it is there."""
        name = self.name.partition("/")[2]
        whole = self.slice == whole_slice(self.shape)
        return name if whole else f"{name}@{','.join(map(str, self.slice.start))}"


def state_shards(
    climbed: Climbed, optimizer: torch.optim.Optimizer, world: World
) -> Iterator[StateShard]:
    """All that this rank holds of the model and of the optimizer's state."""
    for index, shard in enumerate(climbed.shards):
        name = saved_name(shard.name, climbed)
        mine = saves(shard, index, climbed, world)
        yield from shards_of_parameter(stored_path(shard.name, climbed), shard, shard.owned, mine)
        kept, fresh = state_of(optimizer, shard.owned), isinstance(optimizer, CompactAdam)
        for key, value in with_plain(kept, name).items():
            full = f"optimizer/{name}/{key}"
            for part in shards_of_optimizer_state(full, shard, value, mine, world):
                yield replace(part, fresh=fresh)
    apart: Mapping[Any, str] = parameters_apart(climbed.module)
    for index, (name, tensor) in enumerate(untrained(climbed)):
        shard = ParameterShard(
            name,
            tensor,  # type: ignore[arg-type]
            tensor,  # type: ignore[arg-type]
            axes_of(tensor),
            apart=apart.get(tensor, ""),
        )
        mine = saves(shard, index, climbed, world)
        yield from shards_of_parameter(stored_path(name, climbed), shard, local(tensor), mine)


def with_plain(kept: Mapping[str, Any], name: str) -> dict[str, Tensor]:
    """What an optimizer keeps for a parameter, as tensors: what is none goes into one as bytes."""
    tensors = {key: value for key, value in kept.items() if isinstance(value, Tensor)}
    plain = {key: value for key, value in kept.items() if key not in tensors}
    if not plain:
        return tensors
    try:
        return {**tensors, PLAIN: encode(plain)}
    except TypeError as unable:
        raise RecordError(
            "optimizer",
            f"keeps {unable} in '{', '.join(plain)}' for '{name}', which a checkpoint cannot hold",
            "Have it keep tensors and numbers.",
        ) from unable


def model_shapes(climbed: Climbed) -> dict[str, tuple[int, ...]]:
    """The whole shape of every tensor of the model that this rank holds, by the name it is saved
    under, those among them of which its slice is empty."""
    trained = ((shard.name, shard.parameter) for shard in climbed.shards)
    return {
        stored_path(name, climbed): tuple(tensor.shape)
        for name, tensor in (*trained, *untrained(climbed))
    }


def saves(shard: ParameterShard, index: int, climbed: Climbed, world: World) -> bool:
    """Whether, among the ranks that hold these same numbers, this one writes them."""
    place = world.layout.place(world.place.rank)
    first_name = climbed.shared.first_names.get(shard.name, shard.name)
    if climbed.shared.homes.get(first_name, place["pipeline"]) != place["pipeline"]:
        return False
    if not shard.parameter.numel():  # every slice of it is empty, and they are all the same
        index = 0
        if any(place[axis] for axis in shard.axes):
            return False
    # Stages hold other tensors, never copies, and so do ranks with other experts.
    return writes((*shard.axes, shard.apart, "pipeline"), index, world)


def shards_of_optimizer_state(
    name: str, shard: ParameterShard, value: Tensor, mine: bool, world: World
) -> Iterator[StateShard]:
    if value.shape == shard.owned.shape and not name.endswith(f"/{PLAIN}"):
        yield from shards_of_parameter(name, shard, value, mine)
        return
    # A count of steps, or a row of averages: the same on all that hold slices of the parameter.
    place = world.layout.place(world.place.rank)
    first = all(place[axis] == 0 for axis in shard.axes)
    yield StateShard(name, tuple(value.shape), whole_slice(value.shape), value, mine and first)


def shards_of_parameter(
    name: str, shard: ParameterShard, held: Tensor, mine: bool
) -> Iterator[StateShard]:
    """A tensor that is laid out like this shard of a parameter, as slices of the whole."""
    whole = shard.parameter
    shape, size = tuple(whole.shape), tuple(local(whole).shape)
    if not prod(shape):  # without numbers, and yet a part of the model
        yield StateShard(name, shape, whole_slice(shape), held.detach().new_empty(shape), mine)
        return
    if shard.flat is None:
        slices = [(whole_slice(size), held.detach())] if prod(size) else []
    else:
        slices = [
            (piece, held.detach()[row].view(piece.size))
            for piece, row in slices_of_range(size, shard.flat.start, shard.flat.stop)
        ]
    for start, part in contiguous_slices(whole):
        for piece, numbers in slices:
            common = part.intersection(piece)
            if common is not None:
                back = tuple(-a for a in piece.start)
                seen = common.shifted(back).view(numbers)
                yield StateShard(name, shape, common.shifted(start), seen, mine)


def contiguous_slices(whole: Tensor) -> Iterator[tuple[tuple[int, ...], TensorSlice]]:
    """The slices of this rank's tensor that are contiguous in the whole, and where each starts.

    One, but for a matrix of queries, keys and values that the tensor axis cut in each third.
    """
    size, start = tuple(whole.shape), (0,) * whole.dim()
    if not isinstance(whole, DTensor):
        yield start, TensorSlice(start, size)
        return
    last: Any
    *others, last = whole.placements
    in_thirds = is_strided(last)
    placements = [*others, Shard(last.dim) if in_thirds else last]
    size, start = local_slice(whole, placements)
    if not in_thirds:
        yield start, TensorSlice((0,) * len(size), size)
        return
    dim, thirds = last.dim, last.split_factor
    width, length = size[dim] // thirds, whole.shape[dim] // thirds
    for index in range(thirds):
        first = start[dim] // thirds + index * (length - width)
        inside = [0] * len(size)
        inside[dim] = index * width
        yield (
            (*start[:dim], first, *start[dim + 1 :]),
            TensorSlice(tuple(inside), (*size[:dim], width, *size[dim + 1 :])),
        )


def untrained(climbed: Climbed) -> Iterator[tuple[str, Tensor]]:
    """The model's frozen parameters, and the dense buffers that belong to its state or its loss's.

    Frozen parameters of a loss, such as a pretrained network's, are not saved.
    """
    trained = {id(shard.parameter) for shard in climbed.shards}
    for name, parameter in climbed.module.named_parameters():
        if not parameter.requires_grad and id(parameter) not in trained:
            yield name, parameter
    for prefix, part in climbed.state.named_modules():
        for name, buffer in persistent_buffers(part):
            if id(buffer) not in trained and is_dense(buffer):
                yield f"{prefix}.{name}".lstrip("."), buffer


def axes_of(tensor: Tensor) -> tuple[str, ...]:
    return sliced_axes(tensor) if isinstance(tensor, DTensor) else ()


def writes(axes: tuple[str, ...], index: int, world: World) -> bool:
    """Whether this rank, of those that differ along other axes, writes tensor number `index`."""
    place, layout = world.layout.place(world.place.rank), world.layout
    copies, number = 1, 0
    for axis in AXES:
        if axis not in axes:
            ways = getattr(layout, axis)
            number, copies = number * ways + place[axis], copies * ways
    return number == index % copies


def saved_name(name: str, climbed: Climbed) -> str:
    """The name under which a checkpoint holds what this rank's module calls `name`."""
    return canonical(climbed.shared.first_names.get(name, name), climbed.anatomy)


def stored_path(name: str, climbed: Climbed) -> str:
    """Where a checkpoint holds a tensor of the model, or of a loss with parameters of its own."""
    if climbed.loss_module and name.startswith(LOSS):
        return f"loss/{name.removeprefix(LOSS)}"
    return f"model/{saved_name(name, climbed)}"


def canonical(name: str, anatomy: Anatomy) -> str:
    """One name for a matrix that is both head and embedding, wherever its copies live."""
    if anatomy.tied and name == f"{anatomy.head}.weight":
        return f"{anatomy.embedding}.weight"
    return name
