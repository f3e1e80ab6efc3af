"""What a user hands to `step`, as a batch with its place in the run."""

from __future__ import annotations

from typing import Any, Literal

import torch

from stepladder.data import Batch, iter_tensors
from stepladder.data.batch import map_tensors
from stepladder.errors import DataError
from stepladder.plan import Plan

from .batch_rows import rows_of

Rows = Literal["global", "rank"]  # tensors are the whole global batch, or this rank's part of it


def as_batch(given: Any, position: int, ways: int = 1) -> Batch:
    """A batch from a batch, a pair (inputs, targets), a dict with labels, or inputs alone.

    Args:
        ways: ranks that each hand over as many rows of one global batch.
    """
    if isinstance(given, Batch):
        return given
    made = structure(given)
    return Batch.of(made, position=position, size=ways * count_rows(made))


def rank_batch(
    given: Any, position: int, plan: Plan, data_index: int, rows: Rows | None = None
) -> Batch:
    """This rank's part of the global batch that `given` is, or is a part of.

    Nothing is guessed where several ranks split the data: a loader that reads the same rows on
    every rank and one that reads other rows on each look alike, and the wrong guess would train on
    rows twice, or on half of them.
    """
    ways = plan.layout.data_ranks
    if isinstance(given, Batch) or (ways == 1 and rows is None):
        return as_batch(given, position)
    if rows is None:
        raise DataError(
            "rows",
            f"{ways} ranks share the data, and tensors do not say if they are one rank's or all's",
            "Pass rows='rank' (a DataLoader with DistributedSampler), rows='global' (every rank "
            "reads the same rows), or take batches from run.batches.",
        )
    if rows not in ("global", "rank"):
        raise DataError("rows", f"'{rows}' is neither", "Use 'rank' or 'global'.")
    if rows == "rank":
        return as_batch(given, position, ways)
    made = structure(given)
    size = count_rows(made)
    mine = torch.from_numpy(rows_of(plan, size, data_index))
    part = map_tensors(lambda tensor: tensor[mine] if tensor.dim() else tensor, made)
    return Batch.of(part, position=position, size=size)


def structure(given: Any) -> Any:
    """The tensors as they were given; a list is what a DataLoader makes of a pair."""
    return tuple(given) if isinstance(given, list) else given


def count_rows(made: Any) -> int:
    """Rows that all tensors agree on."""
    tensors = list(iter_tensors(made))
    if not tensors:
        raise DataError(
            "batch",
            f"a {type(made).__name__} holds no tensor",
            "Give step a tensor, a pair (inputs, targets) or a dict of tensors.",
        )
    rows = {len(tensor) for tensor in tensors if tensor.dim()}
    if len(rows) > 1:
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in tensors)
        raise DataError(
            "batch", f"its tensors have different numbers of rows: {shapes}", "Give all the same."
        )
    return rows.pop() if rows else 1
