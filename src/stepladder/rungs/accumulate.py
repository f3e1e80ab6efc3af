"""Rung: gradient accumulation: a large batch in little memory, micro-batch by micro-batch.

Each micro-batch's mean loss is weighted by its share of the global batch's valid targets: see
[Note: a mean of means is wrong] in loss.py. The size of a micro-batch may change between batches;
the gradients do not depend on it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from stepladder.data import Batch
from stepladder.errors import ModelError
from stepladder.loss import Loss
from stepladder.plan.layout import COPIES
from stepladder.rungs.data_parallel.gradient_sync import GradientSync
from stepladder.world import World

from .parameter_shards import local

Context = Callable[[], AbstractContextManager[Any]]
SplitBatch = Callable[[Batch], AbstractContextManager[Batch]]
Scale = Callable[[torch.Tensor], torch.Tensor]


@dataclass(slots=True)
class Accumulate:
    """Turns a batch into gradients, micro-batch by micro-batch."""

    gradient_sync: GradientSync
    loss: Loss
    forward_context: Context  # precision, offloading
    world: World
    read_inputs: Callable[[Any], Any] = lambda inputs: inputs  # casts them as the module needs
    micro: int | None = None  # rows of a micro-batch; None: all of the rank's
    split_batch: SplitBatch = nullcontext  # this rank's part of each sequence
    total: int | torch.Tensor = 0  # valid targets of the last global batch
    # Of the last batch: rows and weighted loss of each micro-batch on this rank, on the device.
    parts: list[tuple[int, torch.Tensor]] = field(default_factory=list)

    def __call__(self, batch: Batch, scale: Scale) -> torch.Tensor:
        """Add the batch's gradients to `.grad`; return the global batch's mean loss."""
        counted, self.parts = self.start_count(batch), []
        loss = torch.zeros((), device=self.world.device)
        with self.split_batch(batch) as mine:
            padded = self.padded_micro_batches(batch, mine)
            for index, (part, counts) in enumerate(padded):
                with self.gradient_sync.around_micro_batch(index == len(padded) - 1):
                    mean = self.forward(part)
                    self.total = counted()
                    weighted = mean * (self.weight(part, self.total) if counts else 0.0)
                    # DDP and FSDP average over ranks, and a sum is needed: see gradient_sync.py.
                    scale(weighted * self.gradient_sync.ways).backward()
                self.parts.append((part.num_rows, weighted.detach()))
                loss += weighted.detach()
        return self.world.sum(loss, *COPIES)

    def weight(self, part: Batch, total: int | torch.Tensor) -> float | torch.Tensor:
        """A micro-batch's share of the global batch's valid targets."""
        count = self.loss.count(part)
        return count / (total.clamp(min=1) if isinstance(total, torch.Tensor) else max(total, 1))

    def forward(self, part: Batch) -> torch.Tensor:
        """The mean loss of one micro-batch; zero, with zero gradients, where no target is valid."""
        with self.forward_context():
            outputs = self.outputs(part)
            loss = self.loss.mean(outputs, part) if self.loss.count(part) else zero_loss(outputs)
        if torch.is_grad_enabled() and not loss.requires_grad:
            raise ModelError(
                "loss", "does not depend on any trainable parameter", "Unfreeze one, or check loss."
            )
        return loss

    def outputs(self, part: Batch) -> Any:
        return call(self.gradient_sync.module, self.read_inputs(part.inputs))

    def micro_batches(self, batch: Batch) -> list[Batch]:
        micro = self.micro or batch.num_rows
        if micro >= batch.num_rows:
            return [batch]
        return [
            batch.rows(slice(first, first + micro)) for first in range(0, batch.num_rows, micro)
        ]

    def padded_micro_batches(self, batch: Batch, mine: Batch) -> list[tuple[Batch, bool]]:
        """Every micro-batch, and whether it counts.

        Where a batch does not divide evenly, a rank may have one micro-batch fewer than others,
        which would wait for it in a collective; so it repeats its last one, with weight 0.
        """
        parts, ways = self.micro_batches(mine), self.world.layout.data_ranks
        most = batch.rows_of_fullest(ways)
        idle = -(-most // (self.micro or most)) - len(parts) if ways > 1 else 0
        return [(part, not mine.idle) for part in parts] + [(parts[-1], False)] * idle

    def count(self, batch: Batch) -> int | torch.Tensor:
        """Valid targets of the whole global batch; among several ranks still on the device."""
        return self.start_count(batch)()

    def start_count(self, batch: Batch) -> Callable[[], int | torch.Tensor]:
        """The count as a call: ranks add theirs up during the first forward pass."""
        mine = self.loss.count(batch)
        if self.world.layout.data_ranks == 1:
            return lambda: mine
        count = torch.tensor(float(mine), device=self.world.device)
        return self.world.sum_async(count, "replicate", "shard")

    @torch.no_grad()
    def evaluate(self, batch: Batch) -> tuple[torch.Tensor, int]:
        """The batch's mean loss without gradients, and its number of valid targets."""
        total = self.count(batch)
        loss = torch.zeros((), device=self.world.device)
        with self.split_batch(batch) as mine:
            for part, counts in self.padded_micro_batches(batch, mine):
                loss += self.forward(part) * (self.weight(part, total) if counts else 0.0)
        return self.world.sum(loss, *COPIES), int(total)


def call(module: nn.Module, inputs: Any) -> Any:
    """Call a module with its inputs: one tensor, several, or keyword arguments."""
    if isinstance(inputs, dict):
        return module(**inputs)
    return module(*inputs) if isinstance(inputs, tuple | list) else module(inputs)


def zero_loss(outputs: Any) -> torch.Tensor:
    """Zero that depends on the outputs, so that every parameter gets a gradient of zero."""
    tensors = outputs.values() if isinstance(outputs, dict) else outputs
    tensors = [tensors] if isinstance(tensors, torch.Tensor) else tensors
    used = [t for t in tensors if isinstance(t, torch.Tensor) and t.requires_grad]
    return sum((local(t).nan_to_num().sum() * 0 for t in used), torch.zeros(()))
