"""Lesson: why weights are kept in float32, and mixed precision from scratch.

Next to 1.0, float16 has the numbers 1 - 1/2048 and 1 + 1/1024 and nothing between. A weight of 1.0
that is to move by 0.0001 rounds back to 1.0: the step is lost. So is the next, and the next. Ten
thousand steps that should have moved it by 1 have not moved it at all.

The way out is two copies of every weight:

    master   float32   the truth; the optimizer moves it, however little
    working  float16   the master rounded; forward and backward use it, and are fast

and one step has four parts:

    1. forward and backward with the working copy     gradients in float16
    2. widen the gradients to float32                 and divide by the loss scale, if there is one
    3. the optimizer moves the master                 in float32
    4. round the master into the working copy

Small steps add up in the master until the rounded copy moves too.

torch's autocast is the same idea with the working copy made on the fly: parameters are float32,
and each product rounds its weights just before it runs. The arithmetic is the same operations in
the same types in the same order, so the two agree bit for bit.

**Claim**: a float16 weight at 1.0, pushed by 0.0001 a thousand times, is still at 1.0; with a
master it arrives at 1.1. `push` shows both.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


class MasterWeights:
    """A module worked with in float16 and trained in float32."""

    def __init__(self, module: nn.Module, make_optimizer: MakeOptimizer) -> None:
        self.master = list(module.float().parameters())
        self.working = copy.deepcopy(module).half()
        self.optimizer = make_optimizer(self.master)

    def step(self, loss_of: Callable[[nn.Module], Tensor], scale: float = 1.0) -> float:
        """Make one step on a loss, given as a function of the module to run."""
        loss = loss_of(self.working)
        (loss * scale).backward()
        self.widen_gradients(scale)
        self.optimizer.step()
        self.round_weights()
        return loss.item()

    def widen_gradients(self, scale: float) -> None:
        """Hand each working gradient to its master, in float32, and forget it."""
        for master, working in zip(self.master, self.working.parameters()):
            if working.grad is not None:
                # Widen first: dividing in float16 would lose what the scale was there to save.
                master.grad = working.grad.float().mul_(1 / scale)
                working.grad = None

    @torch.no_grad()
    def round_weights(self) -> None:
        """Make the working copy the nearest float16 number to each master."""
        for master, working in zip(self.master, self.working.parameters()):
            working.copy_(master)


def push(by: float, num_times: int, *, master: bool) -> float:
    """Where a weight of 1.0 arrives after steps of one size, with or without a master."""
    weight = torch.ones((), dtype=torch.float32 if master else torch.float16)
    for _ in range(num_times):
        weight += by
    return weight.item()
