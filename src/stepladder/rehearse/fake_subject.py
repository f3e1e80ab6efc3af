"""The module, and a rank's batch, without numbers: what the step is rehearsed on.

A copy of the module is made whose parameters and buffers are fake. Of the batch, what is counted
on the host (valid targets by row) stays as it is in the sample; rows beyond the sample's are like
those.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import cycle, islice
from typing import Any

import torch
from torch import Tensor, nn

from stepladder.data import Batch
from stepladder.data.batch import RowCounts, map_tensors
from stepladder.model import meta_copy
from stepladder.plan import BatchSplit, SettledPlan
from stepladder.seam.modules import buffers_of, parameters_of

FEW = 3  # micro-batches of a step that are played: each between the first and the last is alike


def fake_copy(module: nn.Module) -> nn.Module:
    """A copy of the module with fake tensors; call it inside a fake mode.

    What is on the meta device comes to be on the CPU, as a module that was read from a checkpoint.
    """
    copied, made = meta_copy(module), dict[int, Tensor]()
    given = dict(zip(copied.modules(), module.modules()))
    for part in copied.modules():
        for held in (parameters_of(part), buffers_of(part)):
            for name, tensor in held.items():
                if tensor is not None:
                    if id(tensor) not in made:
                        made[id(tensor)] = fake_like(tensor, home_of(given[part], name))
                    held[name] = made[id(tensor)]
    copied.train(module.training)
    return copied


def home_of(part: nn.Module, name: str) -> torch.device:
    device = (parameters_of(part).get(name, buffers_of(part).get(name))).device  # type: ignore[union-attr]
    return torch.device("cpu") if device.type == "meta" else device


def fake_like(tensor: Tensor, device: torch.device) -> Tensor:
    made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(made, tensor.requires_grad)
    return made.requires_grad_(tensor.requires_grad)


def rows_of_rank(settled: SettledPlan, sample: Batch) -> int:
    """Rows that a rank has of a batch, as the plan says, or else the sample."""
    batch = settled.plan.batch
    if batch.sequences is not None:
        return -(-batch.sequences // settled.data_ranks)
    if batch.micro is not None and batch.micro_batches is not None:
        return batch.micro * batch.micro_batches
    return max(sample.num_rows, batch.micro or batch.micro_batches or 1)


def few_micro_batches(settled: SettledPlan, rows: int) -> tuple[SettledPlan, int]:
    """The plan of a step of few micro-batches, and how many more like them the step has.

    Stages of a pipeline hold as many micro-batches as there are, so all of them are played.
    """
    plan, given = settled.plan, settled.plan.batch
    micro = given.micro or (-(-rows // given.micro_batches) if given.micro_batches else rows)
    left = -(-rows // micro) - FEW
    if left <= 0 or settled.slices or plan.layout.pipeline > 1:
        return settled, 0
    few = BatchSplit(FEW * micro * settled.data_ranks, micro, FEW)
    return replace(settled, plan=replace(plan, batch=few)), left


def fake_batch(sample: Batch, rows: int, ranks: int) -> Batch:
    """So many rows like the sample's for each of these ranks; call it inside a fake mode."""

    def fake(tensor: Tensor) -> Tensor:
        by_row = tensor.dim() and len(tensor) == sample.num_rows
        shape = (rows, *tensor.shape[1:]) if by_row else tensor.shape
        return torch.empty(shape, dtype=tensor.dtype)

    weights = sample.weight_by_row
    return replace(
        sample,
        inputs=map_tensors(fake, sample.inputs),
        targets=shared(sample, fake),
        size=rows * ranks,
        position=0,
        valid_by_row=RowCounts(islice(cycle(sample.valid_by_row), rows)),
        leading_by_row=RowCounts(islice(cycle(sample.leading_by_row), rows)),
        weight_by_row=tuple(islice(cycle(weights), rows)) if weights else None,
    )


def shared(sample: Batch, fake: Callable[[Tensor], Tensor]) -> Any:
    return None if sample.targets is None else map_tensors(fake, sample.targets)
