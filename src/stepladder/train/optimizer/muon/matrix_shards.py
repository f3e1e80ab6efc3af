"""A rank's part of each hidden matrix, and what the other ranks of its stage hold."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from stepladder.checkpoint import TensorSlice
from stepladder.model.anatomy.hidden_matrices import MatrixShape
from stepladder.planner.time.orthogonalise_time import STAGE
from stepladder.rungs import ParameterShard
from stepladder.train.checkpointing.sharded_state import shards_of_parameter
from stepladder.world import World

from .shared_work import Matrix, Slices


@dataclass(frozen=True, slots=True)
class Strides:
    """Where a slice lies in the contiguous tensor that a rank holds."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    def view(self, held: Tensor) -> Tensor:
        return held.as_strided(self.size, self.stride, self.offset)


@dataclass(frozen=True, slots=True)
class MatrixShard:
    """This rank's part of a matrix: what its optimizer updates, slice by slice."""

    owned: nn.Parameter
    matrix: Matrix
    whole: tuple[int, ...]  # the shape of the whole parameter
    places: Mapping[TensorSlice, Strides]


def find_matrix_shards(
    shards: Sequence[ParameterShard], shapes: Mapping[str, MatrixShape], world: World
) -> list[MatrixShard]:
    """The matrices among a stage's parameters; every rank of the world calls it."""
    mine = [shard for shard in shards if shard.name in shapes]
    places = [places_of(shard) for shard in mine]
    texts = world.gather_texts(write_slices(places))
    stage = stage_ranks(world)
    others = [read_slices(texts[rank]) for rank in stage]
    return [
        MatrixShard(
            shard.owned,
            Matrix(
                shard.name,
                shapes[shard.name],
                tuple(slices[index] for slices in others),
                copy_numbers(shard.axes, stage, world),
            ),
            tuple(shard.parameter.shape),
            places[index],
        )
        for index, shard in enumerate(mine)
    ]


def places_of(shard: ParameterShard) -> dict[TensorSlice, Strides]:
    held = torch.empty(shard.owned.shape, device="meta")
    parts = shards_of_parameter("", shard, held, mine=True)
    return {
        part.slice: Strides(
            tuple(part.tensor.shape), part.tensor.stride(), int(part.tensor.storage_offset())
        )
        for part in parts
        if part.tensor.numel()
    }


def stage_ranks(world: World) -> list[int]:
    """The ranks of this one's pipeline stage, in the order of their group."""
    own = world.layout.place(world.place.rank)["pipeline"]
    every = range(world.layout.num_ranks)
    return [rank for rank in every if world.layout.place(rank)["pipeline"] == own]


def copy_numbers(axes: Sequence[str], stage: Sequence[int], world: World) -> tuple[int, ...]:
    """By rank of the stage: ranks that differ only along `axes` hold one copy together."""
    numbers: dict[tuple[int, ...], int] = {}
    found = []
    for rank in stage:
        place = world.layout.place(rank)
        key = tuple(place[axis] for axis in STAGE if axis not in axes)
        found.append(numbers.setdefault(key, len(numbers)))
    return tuple(found)


def write_slices(places: Sequence[Mapping[TensorSlice, Strides]]) -> str:
    return json.dumps([[[part.start, part.size] for part in each] for each in places])


def read_slices(text: str) -> list[Slices]:
    return [
        tuple(TensorSlice(tuple(start), tuple(size)) for start, size in each)
        for each in json.loads(text)
    ]
