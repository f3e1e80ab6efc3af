"""What a user hands to `step`, as a batch with its place in the run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset

from stepladder.data import Batch, iter_tensors
from stepladder.data.batch import is_by_row, map_tensors
from stepladder.data.lengthen import lengthen
from stepladder.errors import DataError
from stepladder.plan import Plan, SettledPlan
from stepladder.rungs.accumulate import Accumulate
from stepladder.rungs.exact_ranks.accumulate_slices import rows_of_slice

from .batch_rows import rows_of

Rows = Literal["global", "rank"]  # tensors are the whole global batch, or this rank's part of it
REFUSED = -1  # rows of a rank whose batch is of no use


def check_series(data: Any, remedy: str) -> None:
    """Refuse what is one batch, samples, or nothing that can be gone through.

    Args:
        remedy: what to give instead of samples.
    """
    samples = isinstance(data, Dataset) and not isinstance(data, IterableDataset)
    single = isinstance(data, torch.Tensor | Mapping | str) or (
        isinstance(data, tuple) and all(isinstance(part, torch.Tensor) for part in data)
    )
    if samples or single or not isinstance(data, Iterable):
        what = "samples and not batches" if samples else "no series of batches"
        way_out = "Give [batch]." if single else remedy
        raise DataError("data", f"a {type(data).__name__} is {what}", way_out)


def as_batch(given: Any, position: int, ways: int = 1) -> Batch:
    """A batch from a batch, a pair (inputs, targets), a dict with labels, or inputs alone.

    Args:
        ways: ranks that each hand over as many rows of one global batch.
    """
    if isinstance(given, Batch):
        return given
    made = structure(given)
    rows = count_rows(made)
    if not rows:
        raise without_rows("has no rows")
    return Batch.of(made, position=position, size=ways * rows)


def rank_batch(
    given: Any,
    position: int,
    plan: Plan,
    data_index: int,
    rows: Rows | None = None,
    gather: Callable[[int], list[int]] | None = None,
) -> Batch:
    """This rank's part of the global batch that `given` is, or is a part of.

    Nothing is guessed where several ranks split the data: a loader that reads the same rows on
    every rank and one that reads other rows on each look alike, and the wrong guess would train on
    rows twice, or on half of them.

    Args:
        gather: a number of this rank to those of all data ranks; None: all have the same.
    """
    ways = plan.layout.data_ranks
    if isinstance(given, Batch) or (ways == 1 and rows is None):
        batch = as_batch(given, position)
        if batch.pad is None or ways == 1 or gather is None:
            return batch
        return lengthen(batch, lambda length: max(gather(length)))
    if rows is None:
        raise DataError(
            "rows",
            f"{ways} ranks share the data, and tensors do not say if they are one rank's or all's",
            "Pass rows='rank' (a DataLoader with DistributedSampler), rows='global' (every rank "
            "reads the same rows), or take batches from run.batches.",
        )
    if rows not in ("global", "rank"):
        raise DataError("rows", f"'{rows}' is neither", "Use 'rank' or 'global'.")
    made, counts = counted(given, gather or (lambda count: [count] * ways))
    return (
        own_part(made, position, counts, data_index)
        if rows == "rank"
        else part_of_all(made, position, plan, counts, data_index)
    )


def counted(given: Any, gather: Callable[[int], list[int]]) -> tuple[Any, list[int]]:
    """The tensors as they were given, and how many rows each data rank was given.

    A rank that cannot use its batch says so to the others, which would wait for it.
    """
    try:
        made = structure(given)
        mine = count_rows(made)
    except DataError:
        gather(REFUSED)
        raise
    counts = gather(mine)
    if REFUSED in counts:
        where = f"data rank {counts.index(REFUSED)} cannot use its batch"
        raise DataError("batch", where, "Its log says why.")
    if not any(counts):
        raise without_rows("has no rows on any rank")
    return made, counts


def without_rows(said: str) -> DataError:
    return DataError("batch", said, "Give at least one, or leave the batch out.")


def own_part(made: Any, position: int, counts: list[int], data_index: int) -> Batch:
    """Rows that this rank alone was given; ranks may have unequal numbers of them."""
    idle = not counts[data_index]
    if idle:
        made = map_tensors(lambda tensor: tensor.new_zeros(1, *tensor.shape[1:]), made)
    return Batch.of(made, position=position, size=sum(counts), most_rows=max(counts), idle=idle)


def part_of_all(made: Any, position: int, plan: Plan, counts: list[int], data_index: int) -> Batch:
    """This rank's rows of a batch that every rank was given whole."""
    size = counts[data_index]
    if len(set(counts)) > 1:
        raise DataError(
            "rows",
            f"'global' means the same batch on every rank, and ranks were given "
            f"{', '.join(map(str, counts))} rows",
            "Give all the same, or pass rows='rank' where each rank has its own.",
        )
    return take_rows(made, rows_of(plan, size, data_index), position, size)


def take_rows(made: Any, mine: np.ndarray, position: int, size: int) -> Batch:
    """Some rows of a whole global batch; where they are none, another rank's row stands in."""
    index = torch.from_numpy(mine if len(mine) else np.zeros(1, np.int64))
    part = map_tensors(
        lambda tensor: tensor[index.to(tensor.device)] if tensor.dim() else tensor,
        made,
        lambda value: [value[row] for row in index] if is_by_row(value, size) else value,
    )
    return Batch.of(part, position=position, size=size, idle=not len(mine))


def structure(given: Any) -> Any:
    """The tensors as they were given; a list is what a DataLoader makes of a pair.

    A mapping of another class, such as a tokenizer's BatchEncoding, is the dict of its parts.
    """
    if isinstance(given, Mapping) and not isinstance(given, dict):
        return dict(given)
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
    if any(tensor.is_meta for tensor in tensors):
        remedy = "Give tensors with values, on the CPU or the run's device."
        raise DataError("batch", "a tensor of it is on the meta device and has no values", remedy)
    refuse_sample(made)
    rows = {len(tensor) for tensor in tensors if tensor.dim()}
    if not rows:
        problem = "its tensors are single numbers, and the first dimension counts the rows"
        raise DataError("batch", problem, "Give a batch of one row: tensor.reshape(1, -1).")
    if len(rows) > 1:
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in tensors)
        raise DataError(
            "batch",
            f"its tensors have different numbers of rows: {shapes}",
            "A row is one sample, and the first dimension of every tensor counts them: put it "
            "first (batch_first=True), and pad samples of unequal shape.",
        )
    return rows.pop()


def refuse_sample(made: Any) -> None:
    """Refuse one sample with its class, whose numbers would be taken for rows."""
    inputs, target = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    whole = isinstance(target, torch.Tensor) and not target.dim() and not target.is_floating_point()
    rows = next((len(one) for one in iter_tensors(inputs) if one.dim()), 0)
    if whole and rows > 1:
        problem = f"its target is one integer for inputs of {rows} rows"
        remedy = "Give batches of samples, such as DataLoader(data, batch_size=32)."
        raise DataError("batch", problem, remedy)


def set_micro_batch(parts: Accumulate, settled: SettledPlan, batch: Batch) -> None:
    """Have micro-batches be as large as the plan and the batch say, alike on every rank."""
    ranks = settled.data_ranks
    if settled.slices:
        parts.micro = rows_of_slice(batch, settled.slices, ranks)
        settled.plan.batch.check_slices(batch.size, settled.slices, ranks)
        return
    settled.plan.batch.check_rows(batch.size, ranks)
    if parts.micro is None and settled.micro_batches:  # the first batch says it
        parts.micro = settled.rows_per_micro_batch(batch.rows_of_fullest(ranks))
