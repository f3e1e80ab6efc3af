"""Accumulation with DDP, and what it does to convergence.

A batch of 32 that does not fit is run as micro-batches of fewer rows, whose gradients add up: the
optimizer's step comes after the last. Two things go wrong under DistributedDataParallel:

    scale            gradients of micro-batches add up, and each is that of a mean of its own
    communication    DDP sends gradients whenever backward has run, though only their sum matters.
                     `model.no_sync()` keeps it from that, forward included, because it is forward
                     that decides

Claim: 2 ranks with 1, 2, 4 or 8 micro-batches of 16, 8, 4 or 2 rows have the same losses to five
digits; `stepladder.climb` with accumulate=4 has them too. Steps after every 4 rows instead (no
accumulation) go another way, and end higher at the same rate.

Predict: How many all-reduces does a step of eight micro-batches make on two ranks, for a model
whose gradients fit into one bucket? [all_reduces; micro-batches = 8 x 2]

Often wrong:
- the loss is not divided by the number of micro-batches
- every micro-batch sends its gradients
- no micro-batch sends its gradients
- gradients are set to zero in every micro-batch
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from stepladder.labs.equipment.lab_ranks import on_ranks
from stepladder.measure import Traffic

BATCH, STEPS, RATE = 32, 40, 0.1


def accumulate(
    model: DistributedDataParallel, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor, p: int
) -> float:
    """One step on this rank's rows in p micro-batches; their mean loss."""
    total = 0.0
    # >>> The step begins with no gradient.
    # ??? backward adds to the gradient that is there. When in a step should there be none?
    # ??? Once a step, or once a micro-batch?
    optimizer.zero_grad()
    # <<< pass
    for number, (xs, ys) in enumerate(zip(x.chunk(p), y.chunk(p), strict=True), start=1):
        # >>> Have gradients travel once a step, when they are complete.
        # ??? DDP decides in forward whether backward will send. model.no_sync() is a context in
        # ???   which it decides not to.
        # ??? nullcontext() is one in which nothing changes.
        # ??? `number` counts micro-batches from 1.
        context = nullcontext() if number == p else model.no_sync()
        # <<< context = nullcontext()
        with context:
            loss = (model(xs) - ys).square().mean()
            # >>> Backward of this micro-batch's share of the mean loss.
            # ??? The mean of the whole is made of p means of equal parts: how?
            # ??? `loss` is still needed below, as it is.
            (loss / p).backward()
            # <<< optimizer.zero_grad(); loss.backward()
        total += loss.item() / p
    optimizer.step()
    return total


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))


def batch_of(step: int, num_rows: int) -> tuple[Tensor, Tensor]:
    x = torch.randn(num_rows, 8, generator=torch.Generator().manual_seed(step))
    return x, x.sin().sum(dim=1, keepdim=True)


def train(micro_batches: int, batch: int = BATCH) -> tuple[list[float], int]:
    """After each step the loss on 256 rows never learned from; and the all-reduces of a step."""
    model = DistributedDataParallel(make_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    (x_new, y_new), losses = batch_of(-1, 256), []
    for step in range(STEPS):
        x, y = (rows[dist.get_rank() :: 2] for rows in batch_of(step, batch))
        with Traffic() as traffic:
            accumulate(model, optimizer, x, y, micro_batches)
        with torch.no_grad():
            losses.append((model.module(x_new) - y_new).square().mean().item())
    return losses, traffic.calls["all_reduce"]


def measure() -> list[dict[str, Any]]:
    cases = [(1, BATCH), (2, BATCH), (4, BATCH), (8, BATCH), (1, 4)]
    return [
        {"micro-batches": f"{p} x {batch // p}", "step": step, "loss": loss, "all_reduces": sent}
        for p, batch in cases
        for losses, sent in [on_ranks(train, 2, p, batch)[0]]
        for step, loss in enumerate(losses)
    ]


if __name__ == "__main__":
    for row in measure():
        print(row)
