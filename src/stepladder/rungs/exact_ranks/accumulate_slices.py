"""Gradient accumulation over the slices of a batch: nothing of a slice depends on its rank.

A slice is one micro-batch of the same shape wherever it runs. Its random numbers are drawn from the
seed, the step and its number; its weight is its share of all slices' targets, added up by number;
its loss and what it writes to buffers are added up in the tree of [Note: one tree for every
layout].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from stepladder.data import Batch
from stepladder.errors import DataError, ModelError
from stepladder.plan.batch import nearest_multiples
from stepladder.plan.layout import COPIES
from stepladder.rungs.accumulate import Accumulate
from stepladder.rungs.loss_module import with_loss
from stepladder.world import seed_generators

from .slice_statistics import SliceStatistics
from .slices import Slices


@dataclass(slots=True)
class AccumulateSlices(Accumulate):
    """Turns a batch into gradients, slice by slice."""

    slices: Slices = Slices(own=(0,))

    def settle_loss(self, batch: Batch) -> None:
        Accumulate.settle_loss(self, batch)
        if self.loss.weighting is not None and self.loss.weighting.measured:
            raise ModelError(
                "loss",
                "weighs targets by class, and what each weighs had to be measured, which rounds "
                "otherwise on other ranks",
                "Use torch.nn.CrossEntropyLoss(weight=...), or leave exact=ranks out.",
            )

    def forward(self, part: Batch) -> Tensor:
        if torch.is_grad_enabled():
            number = self.slices.own[len(self.parts)]
            seed_generators(self.world.device, *self.keys, number)
        return Accumulate.forward(self, part)

    def start_count(self, batch: Batch) -> Callable[[], None]:
        if not torch.is_grad_enabled():  # an evaluation's batch may have any number of rows
            return Accumulate.start_count(self, batch)
        mine = [
            (self.loss.count(part), self.loss.tokens(part)) for part in self.micro_batches(batch)
        ]
        every = self.slices.gather_numbers(mine)
        self.weight_total = sum(weight for weight, _ in every)
        self.total = sum(tokens for _, tokens in every)
        return lambda: None

    def sum_losses(self) -> Tensor:
        loss = self.slices.total(torch.stack([loss for _, loss in self.parts]).float())
        self.sum_over_ranks(loss.new_zeros(()), *COPIES)  # its named terms, which are only reported
        return loss

    def follow_statistics(self, module: nn.Module) -> None:
        state = with_loss(module, self.loss_module)
        self.statistics = [SliceStatistics(state, self.world, self.notes, slices=self.slices)]


def rows_of_slice(batch: Batch, slices: int, ranks: int) -> int:
    """Rows of each slice of a batch, or why it has no equal ones."""
    if batch.size % slices:
        raise DataError(
            "batch",
            f"{batch.size} rows do not divide into the {slices} slices of exact=ranks",
            f"Nearest that do: {nearest_multiples(batch.size, slices)}.",
        )
    if batch.rows_of_fullest(ranks) * ranks != batch.size:
        raise DataError(
            "batch",
            f"of {batch.size} rows one rank has {batch.rows_of_fullest(ranks)}, and each of the "
            f"{ranks} ranks computes as many slices",
            f"Give every rank {batch.size // ranks} rows.",
        )
    return batch.size // slices
