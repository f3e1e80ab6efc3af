"""Rung: one batch in several passes that add gradients up: a large batch in little memory.

Each pass's mean loss is weighed by its share of the global batch's valid targets: see
[Note: a mean of means is wrong] in loss.py. The micro-batch may be changed between batches; the
gradients do not depend on it.
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
from stepladder.rungs.data_parallel.gradient_sync import Exchange
from stepladder.world import World

from .parameter_shards import local

Share = Callable[[Batch], AbstractContextManager[Batch]]
Scale = Callable[[torch.Tensor], torch.Tensor]


@dataclass(slots=True)
class Accumulate:
    """Turns a batch into gradients, pass by pass."""

    exchange: Exchange
    loss: Loss
    working: Callable[[], AbstractContextManager[Any]]  # the precision a forward pass runs in
    world: World
    intake: Callable[[Any], Any] = lambda inputs: inputs  # inputs in the type the module reads
    micro: int | None = None  # rows of one pass; None: all of them
    share: Share = nullcontext  # block in which a batch is cut to this rank's part of its sequences
    total: int | torch.Tensor = 0  # valid targets of the last global batch
    # Of the last batch, on the device: each pass's rows and its weighed loss on this rank.
    parts: list[tuple[int, torch.Tensor]] = field(default_factory=list)

    def __call__(self, batch: Batch, scale: Scale) -> torch.Tensor:
        """Add the batch's gradients to `.grad`; return the global batch's mean loss."""
        counted, self.parts = self.counting(batch), []
        loss = torch.zeros((), device=self.world.device)
        with self.share(batch) as mine:
            turns = self.turns(batch, mine)
            for index, (part, counts) in enumerate(turns):
                with self.exchange.passing(index == len(turns) - 1):
                    mean = self.forward(part)
                    self.total = counted()
                    weighed = mean * (self.weight(part, self.total) if counts else 0.0)
                    # The engine that adds ranks up divides by their number: see exchange.py.
                    scale(weighed * self.exchange.ways).backward()
                self.parts.append((part.num_rows, weighed.detach()))
                loss += weighed.detach()
        return self.world.sum(loss, *COPIES)

    def weight(self, part: Batch, total: int | torch.Tensor) -> float | torch.Tensor:
        """A micro-batch's share of the global batch's valid targets."""
        count = self.loss.count(part)
        return count / (total.clamp(min=1) if isinstance(total, torch.Tensor) else max(total, 1))

    def forward(self, part: Batch) -> torch.Tensor:
        """The mean loss of one micro-batch; zero, with zero gradients, where no target is valid."""
        with self.working():
            outputs = self.outputs(part)
            loss = self.loss.mean(outputs, part) if self.loss.count(part) else nothing(outputs)
        if torch.is_grad_enabled() and not loss.requires_grad:
            raise ModelError(
                "loss", "does not depend on any trainable parameter", "Unfreeze one, or check loss."
            )
        return loss

    def outputs(self, part: Batch) -> Any:
        return call(self.exchange.module, self.intake(part.inputs))

    def passes(self, batch: Batch) -> list[Batch]:
        micro = self.micro or batch.num_rows
        if micro >= batch.num_rows:
            return [batch]
        return [
            batch.rows(slice(first, first + micro)) for first in range(0, batch.num_rows, micro)
        ]

    def turns(self, batch: Batch, mine: Batch) -> list[tuple[Batch, bool]]:
        """Every pass, and whether it counts.

        Where a batch does not divide, a rank may have a pass less than others. They would wait for
        it in a collective, so it runs one again for nothing.
        """
        parts, ways = self.passes(mine), self.world.layout.data_ways
        most = -(-batch.size // ways)  # rows of the rank that has most
        idle = -(-most // (self.micro or most)) - len(parts) if ways > 1 else 0
        return [(part, True) for part in parts] + [(parts[-1], False)] * idle

    def count(self, batch: Batch) -> int | torch.Tensor:
        """Valid targets of the whole global batch; among several ranks still on the device."""
        return self.counting(batch)()

    def counting(self, batch: Batch) -> Callable[[], int | torch.Tensor]:
        """The count, once it is asked for: ranks tell each other theirs during the first pass."""
        mine = self.loss.count(batch)
        if self.world.layout.data_ways == 1:
            return lambda: mine
        count = torch.tensor(float(mine), device=self.world.device)
        return self.world.sum_async(count, "replicate", "shard")

    @torch.no_grad()
    def evaluate(self, batch: Batch) -> tuple[torch.Tensor, int]:
        """The batch's mean loss without gradients, and its number of valid targets."""
        total = self.count(batch)
        loss = torch.zeros((), device=self.world.device)
        with self.share(batch) as mine:
            for part, counts in self.turns(batch, mine):
                loss += self.forward(part) * (self.weight(part, total) if counts else 0.0)
        return self.world.sum(loss, *COPIES), int(total)


def call(module: nn.Module, inputs: Any) -> Any:
    """Call a module the way its inputs are shaped: one tensor, several, or by name."""
    if isinstance(inputs, dict):
        return module(**inputs)
    return module(*inputs) if isinstance(inputs, tuple | list) else module(inputs)


def nothing(outputs: Any) -> torch.Tensor:
    """Zero that still depends on the outputs, so that every parameter gets a zero gradient."""
    tensors = outputs.values() if isinstance(outputs, dict) else outputs
    tensors = [tensors] if isinstance(tensors, torch.Tensor) else tensors
    used = [t for t in tensors if isinstance(t, torch.Tensor) and t.requires_grad]
    return sum((local(t).nan_to_num().sum() * 0 for t in used), torch.zeros(()))
