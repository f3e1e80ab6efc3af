"""The rows that a loss is tried on: a few of the global batch, the same on every rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from stepladder.data import Batch, iter_tensors
from stepladder.errors import DataError
from stepladder.world import World

ROWS = 6  # that are tried
LENGTH = 32  # tokens of a row, where rows are sequences


def gather_rows(batch: Batch, smallest: int, world: World) -> tuple[Batch, int]:
    """A few rows of the global batch, the same on every rank, and the smallest piece of any rank.

    Rows that are missing are altered copies.
    """
    mine = batch.rows(slice(0, ROWS)).to("cpu")
    found = [(world.data_index, smallest, samples_of(mine))]
    if world.mesh is not None:
        found = [found[0]] * world.layout.num_ranks
        dist.all_gather_object(found, (world.data_index, smallest, samples_of(mine)))
    by_index = {index: samples for index, _, samples in found}
    whole = joined([by_index[index] for index in sorted(by_index)])
    have = Batch.of(whole, position=0, size=ROWS)
    rows = have.pick(torch.arange(ROWS) % have.num_rows)
    return vary(rows, have.num_rows).to(world.device), min(size for _, size, _ in found)


def samples_of(batch: Batch) -> Any:
    """What the batch was made of."""
    inputs, targets = batch.inputs, batch.targets
    within = isinstance(inputs, dict) and any(value is targets for value in inputs.values())
    return inputs if targets is None or within else (inputs, targets)


def joined(ranks: Sequence[Any]) -> Any:
    """Rows of all ranks in turn, where they have one shape; else the first's."""
    first = ranks[0]
    if isinstance(first, Tensor):
        same = first.dim() and len({tensor.shape[1:] for tensor in ranks}) == 1
        return torch.cat(list(ranks)) if same else first
    if isinstance(first, dict):
        return {key: joined([each[key] for each in ranks]) for key in first}
    if isinstance(first, (tuple, list)):
        return tuple(joined([each[index] for each in ranks]) for index in range(len(first)))
    return first


def vary(rows: Batch, have: int) -> Batch:
    """The rows from `have` on, which are copies, made to differ from the first ones."""
    draw = torch.Generator().manual_seed(0)
    targets = {id(tensor) for tensor in iter_tensors(rows.targets)}
    for tensor in rows.tensors():
        if id(tensor) in targets or have >= len(tensor) or not tensor.dim():
            continue
        other = tensor.clone()
        if tensor.is_floating_point():
            apart = torch.randn(other[have:].shape, generator=draw).to(other.dtype)
            other[have:] += apart * other.std().nan_to_num(1.0)
        elif tensor.dim() > 1:
            for row in range(have, len(other)):
                other[row] = other[row].roll(row, 0)
        rows = rows.exchange(tensor, other)
    return rows


def shorten(rows: Batch) -> Batch:
    """The first tokens of sequences that have a target each."""
    if not isinstance(rows.targets, Tensor) or rows.targets.dim() != 2:
        return rows
    if rows.targets.is_floating_point() or rows.targets.shape[1] <= LENGTH:
        return rows
    try:
        rows.length  # noqa: B018  raises where tensors are not all as long
    except DataError:
        return rows
    return rows.columns(slice(0, LENGTH))


def contents(part: Batch) -> Any:
    """A key that is equal for batches of the same numbers."""
    counts = part.valid_by_row, part.leading_by_row
    return *counts, *map(contents_of, (part.inputs, part.targets))


def contents_of(value: Any) -> Any:
    """Of tensors, numbers and words, or a structure of them; anything else equals nothing."""
    if isinstance(value, dict):
        return tuple((key, contents_of(one)) for key, one in value.items())
    if isinstance(value, (tuple, list)):
        return tuple(contents_of(one) for one in value)
    if isinstance(value, Tensor) and value.layout is torch.strided:
        flat = value.detach().cpu().reshape(-1)
        return value.shape, value.dtype, flat.view(torch.uint8).numpy().tobytes()
    return value if value is None or isinstance(value, (str, int, float)) else object()
