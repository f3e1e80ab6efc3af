"""Whoever wants to see outputs is given them whole, with the targets of the same rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from stepladder.data import Batch
from stepladder.errors import ModelError
from stepladder.plan import Plan
from stepladder.train.batch_rows import rows_of
from stepladder.world import World

from .collect_rows import CollectedRows, RankRows
from .structure import take_apart

RANK_STRIDE = 2**32  # between the rows of ranks that have rows of their own

Keep = Callable[[Any], Any]


class Taker(Protocol):
    """Takes outputs and targets of some rows."""

    def take(self, outputs: Any, targets: Any, rows: int) -> None: ...


@dataclass(slots=True)
class AllRows:
    """Keeps outputs and targets, or outputs alone, until all rows were seen."""

    with_targets: bool = True
    outputs: CollectedRows = field(default_factory=lambda: CollectedRows("outputs"))
    targets: CollectedRows = field(default_factory=lambda: CollectedRows("targets"))

    def take(self, outputs: Any, targets: Any, rows: int) -> None:
        self.outputs.add(outputs, rows)
        self.targets.add(targets if self.with_targets else None, rows)


@dataclass(slots=True)
class Observer:
    """Sees the outputs of every micro-batch on this rank, and counts its rows.

    Args:
        keep: what is kept of a micro-batch's outputs.
    """

    plan: Plan
    world: World
    keep: Keep
    takers: Sequence[Taker]
    numbers: list[np.ndarray] = field(default_factory=list)  # of the rows seen: batch, row in it
    batch: Batch | None = None
    batches: int = 0
    seen: int = 0  # rows of this batch

    def start(self, batch: Batch) -> None:
        self.batch, self.seen = batch, 0
        self.batches += 1

    def __call__(self, outputs: Any, part: Batch) -> None:
        assert self.batch is not None
        structure, tensors = take_apart(outputs)
        whole = structure.build(self.whole(tensor, part) for tensor in tensors)
        kept = self.keep(whole)
        rows = slice(self.seen, self.seen + part.num_rows)
        # A micro-batch of a cut sequence has only some of its targets.
        targets = self.batch.rows(rows).targets
        for taker in self.takers:
            taker.take(kept, targets, part.num_rows)
        places = row_numbers(self.batch, self.plan, self.world.data_index)[rows]
        self.numbers.append(np.stack((np.full_like(places, self.batches), places), 1))
        self.seen = rows.stop

    def whole(self, tensor: Tensor, part: Batch) -> Tensor:
        """An output of all tensor and context parallel ranks together."""
        tensor = tensor.detach()
        tensor = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        ways = self.world.layout.context
        if ways == 1:
            return tensor
        if not tensor.dim():
            return self.world.sum(tensor / ways, "context")
        length = part.targets.shape[1]
        if tensor.dim() < 2 or tensor.shape[1] != length:
            raise ModelError(
                "layout.context",
                f"an output of shape {tuple(tensor.shape)} has no entry for each of the {length} "
                "tokens that a rank computes",
                "Use context=1.",
            )
        mine = tensor.contiguous()
        chunks = [torch.empty_like(mine) for _ in range(ways)]
        dist.all_gather(chunks, mine, group=self.world.group("context"))
        return torch.cat(chunks, 1)

    def rank_rows(self, rows: AllRows) -> RankRows | None:
        """What this rank hands over; None where it has no rows, or another rank has the same."""
        place = self.world.layout.place(self.world.place.rank)
        if not self.numbers or place["tensor"] or place["context"]:
            return None
        numbers = np.concatenate(self.numbers)
        return RankRows(numbers, rows.outputs.joined(), rows.targets.joined())


def row_numbers(batch: Batch, plan: Plan, data_index: int) -> np.ndarray:
    """Where a rank's rows are in the global batch; rows of its own come after those of the rank
    before."""
    if batch.most_rows is None and plan.layout.data_ranks > 1:
        mine = rows_of(plan, batch.size, data_index)
        if len(mine) == batch.num_rows:
            return mine
    return np.arange(batch.num_rows) + data_index * RANK_STRIDE
