"""Every number of a run that is kept, as this rank holds it: which box of which tensor.

A checkpoint stores whole tensors in boxes, so a run on other ranks, or in another layout, finds in
it whatever part of them it needs. Where several ranks hold the same numbers one of them writes; who
is arithmetic on the layout, different for each tensor, so that all ranks write about as much.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard

from stepladder.checkpoint import TensorSlice, whole_slice
from stepladder.checkpoint.tensor_slice import slices_of_range
from stepladder.model import Anatomy
from stepladder.plan import AXES
from stepladder.rungs import Climbed, ParameterShard, local, sliced_axes
from stepladder.rungs.data_parallel.broadcast_parameters import is_strided as is_dense
from stepladder.rungs.loss_module import PREFIX as LOSS
from stepladder.seam.modules import persistent_buffers
from stepladder.seam.sharding import is_strided, local_box
from stepladder.world import World


@dataclass(frozen=True, slots=True)
class Holding:
    """Numbers of one tensor."""

    name: str  # "model/…", "loss/…" or "optimizer/parameter/…"
    shape: tuple[int, ...]  # of the whole tensor
    box: TensorSlice
    tensor: Tensor  # the numbers; writing into it changes the run
    mine: bool = True  # to write; else another rank that holds the same does

    @property
    def key(self) -> str:
        """Its name in a file: the tensor's own where all of it is there."""
        name = self.name.partition("/")[2]
        whole = self.box == whole_slice(self.shape)
        return name if whole else f"{name}@{','.join(map(str, self.box.start))}"


def holdings(climbed: Climbed, optimizer: torch.optim.Optimizer, world: World) -> Iterator[Holding]:
    """All that this rank holds of the model and of the optimizer's state."""
    for index, shard in enumerate(climbed.shards):
        name = saved_name(shard.name, climbed)
        mine = saves(shard, index, climbed, world)
        yield from in_boxes(stored_path(shard.name, climbed), shard, shard.owned, mine)
        for key, value in optimizer.state.get(shard.owned, {}).items():
            if isinstance(value, Tensor):
                yield from state_boxes(f"optimizer/{name}/{key}", shard, value, mine, world)
    for index, (name, tensor) in enumerate(untrained(climbed)):
        shard = ParameterShard(name, tensor, tensor, axes_of(tensor))  # type: ignore[arg-type]
        mine = saves(shard, index, climbed, world)
        yield from in_boxes(stored_path(name, climbed), shard, local(tensor), mine)


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
    return writes(shard.axes, index, world)


def state_boxes(
    name: str, shard: ParameterShard, value: Tensor, mine: bool, world: World
) -> Iterator[Holding]:
    if value.shape == shard.owned.shape:
        yield from in_boxes(name, shard, value, mine)
        return
    # A count of steps, or a row of averages: the same on all that hold slices of the parameter.
    place = world.layout.place(world.place.rank)
    first = all(place[axis] == 0 for axis in shard.axes)
    yield Holding(name, tuple(value.shape), whole_slice(value.shape), value, mine and first)


def in_boxes(name: str, shard: ParameterShard, held: Tensor, mine: bool) -> Iterator[Holding]:
    """A tensor laid out as its piece is, as boxes of the whole parameter."""
    whole = shard.parameter
    shape, size = tuple(whole.shape), tuple(local(whole).shape)
    if not prod(shape):  # without numbers, and yet a part of the model
        yield Holding(name, shape, whole_slice(shape), held.detach().new_empty(shape), mine)
        return
    if shard.flat is None:
        boxes = [(whole_slice(size), held.detach())] if prod(size) else []
    else:
        boxes = [
            (box, held.detach()[row].view(box.size))
            for box, row in slices_of_range(size, shard.flat.start, shard.flat.stop)
        ]
    for start, part in stretches(whole):
        for box, numbers in boxes:
            common = part.intersection(box)
            if common is not None:
                back = tuple(-a for a in box.start)
                seen = common.shifted(back).view(numbers)
                yield Holding(name, shape, common.shifted(start), seen, mine)


def stretches(whole: Tensor) -> Iterator[tuple[tuple[int, ...], TensorSlice]]:
    """The boxes of this rank's own tensor that lie together in the whole, and how far each moved.

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
    size, start = local_box(whole, placements)
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
    """Whether this rank is the one of its stage that writes tensor number `index`."""
    place, layout = world.layout.place(world.place.rank), world.layout
    copies, number = 1, 0
    for axis in AXES:
        if axis not in axes and axis != "pipeline":  # stages hold other tensors, never copies
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
