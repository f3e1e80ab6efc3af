"""The rows of all batches put together: on a rank batch by batch, then over ranks, in their order.

Rows are kept on the host, with 16-bit numbers in float32, which any metric can read. Where batches
differ in a dimension after the first, as sequences padded to the longest of a batch do, rows are
padded: whole numbers with -100, which marks ignored targets, and others with 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stepladder.data import IGNORED
from stepladder.errors import DataError

from .structure import Structure, take_apart


@dataclass(slots=True)
class CollectedRows:
    """The outputs or the targets of the rows that one rank has seen."""

    what: str  # "outputs" or "targets"
    structure: Structure | None = None  # None: nothing was seen yet
    dims: list[int] = field(default_factory=list)  # of each tensor, as the module returned it
    entries: list[bool] = field(default_factory=list)  # whether a row has several in a first dim
    pieces: list[list[Tensor]] = field(default_factory=list)

    def add(self, value: Any, rows: int) -> None:
        structure, tensors = take_apart(value)
        dims = [tensor.dim() for tensor in tensors]
        if self.structure is None:
            self.structure, self.dims = structure, dims
            self.entries = [tensor.dim() > 0 and len(tensor) != rows for tensor in tensors]
        if (structure, dims) != (self.structure, self.dims):
            raise DataError(
                self.what,
                f"a batch of {rows} rows has {describe(tensors)}, nested otherwise than the rows "
                "before",
                "Have the module return the same for every batch, or pass keep= a function that "
                "picks what does not change.",
            )
        self.pieces.append(
            [
                on_host(self.by_row(tensor, rows, several))
                for tensor, several in zip(tensors, self.entries)
            ]
        )

    def by_row(self, tensor: Tensor, rows: int, several: bool) -> Tensor:
        """The tensor with one entry a row; a number belongs to every row."""
        if not tensor.dim():
            return tensor.expand(rows)
        if not several and len(tensor) == rows:
            return tensor
        if not len(tensor) or len(tensor) % rows:
            raise DataError(
                self.what,
                f"a tensor of shape {tuple(tensor.shape)} has no entry for each of {rows} rows",
                "Pass keep= a function that picks what belongs to rows.",
            )
        return tensor.unflatten(0, (rows, -1))

    def joined(self) -> list[Tensor]:
        """Each tensor over all rows of this rank."""
        return [cat_padded(tensors) for tensors in zip(*self.pieces)]

    def finish(self, by_row: Sequence[Tensor]) -> list[Tensor]:
        """Tensors over all rows, as the module would return them for one batch of all."""
        return [
            flatten_entries(tensor, several) if dim else tensor.double().mean().to(tensor.dtype)
            for tensor, dim, several in zip(by_row, self.dims, self.entries)
        ]

    def build(self, tensors: Sequence[Tensor]) -> Any:
        """The tensors nested as the module nests them."""
        assert self.structure is not None
        return self.structure.build(iter(tensors))


def flatten_entries(tensor: Tensor, several: bool) -> Tensor:
    return tensor.flatten(0, 1) if several else tensor


def on_host(tensor: Tensor) -> Tensor:
    """A copy, since a loader or a module may write its next batch into the same memory."""
    narrow = tensor.dtype in (torch.float16, torch.bfloat16)
    return tensor.detach().to("cpu", torch.float32 if narrow else tensor.dtype, copy=True)


def describe(tensors: Sequence[Tensor]) -> str:
    return ", ".join(str(tuple(tensor.shape)) for tensor in tensors) or "no tensor"


def cat_padded(tensors: Sequence[Tensor]) -> Tensor:
    """All rows; those of smaller tensors are padded."""
    shape = tuple(max(sizes) for sizes in zip(*(tensor.shape[1:] for tensor in tensors)))
    return torch.cat([padded(tensor, shape) for tensor in tensors])


def padded(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    if tensor.shape[1:] == shape:
        return tensor
    whole = not tensor.is_floating_point() and not tensor.is_complex()
    signed = whole and tensor.dtype != torch.bool and torch.iinfo(tensor.dtype).min < 0
    made = tensor.new_full((len(tensor), *shape), IGNORED if signed else 0)
    made[tuple(slice(size) for size in tensor.shape)] = tensor
    return made


@dataclass(frozen=True, slots=True)
class RankRows:
    """What one rank hands over: where its rows belong, and each tensor over them."""

    numbers: np.ndarray  # (rows, 2): the batch, and the row in the global batch
    outputs: list[Tensor]
    targets: list[Tensor]


def put_in_order(parts: Sequence[RankRows]) -> tuple[list[Tensor], list[Tensor]]:
    """Outputs and targets over the rows of all ranks, in the order of the data."""
    numbers = np.concatenate([part.numbers for part in parts])
    order = torch.from_numpy(np.lexsort((numbers[:, 1], numbers[:, 0])))
    outputs = zip(*(part.outputs for part in parts))
    targets = zip(*(part.targets for part in parts))
    return (
        [cat_padded(tensors)[order] for tensors in outputs],
        [cat_padded(tensors)[order] for tensors in targets],
    )
