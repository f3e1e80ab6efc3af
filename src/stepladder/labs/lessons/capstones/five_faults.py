"""Capstone: five faults in a training job.

A job that trained on one GPU was moved to several ranks and to fp16. It runs, its loss falls, and
five things are wrong with it. This is what it is meant to do:

    order       each epoch has another order; every row is read once an epoch, by one of the ranks
    gradient    the mean over all rows of the batch, whatever the number of ranks and micro-batches
    clipping    the true gradient's norm is at most CLIP, whatever the loss scale
    rate        RATE for one rank's batch, in proportion to the ranks; it is reached in WARMUP
                equal steps, the first of which is not zero
    evaluation  a row's prediction does not depend on the other rows, and the model stays as it is

No TODO says where. Find the faults, mend them, and change nothing else.

Claim: mended, two ranks learn what one plain loop over the whole batch learns, and what torch's
DistributedDataParallel learns in its place.

Predict: On one rank the mended job ends at a loss of 0.1409. Where does it end on two, whose rate
is twice as large? [loss; ranks = 2]

Often wrong:
- the order of the first epoch is repeated in every epoch
- gradients are added over ranks and not averaged
- gradients are clipped while they are still scaled
- the rate grows with the square of the ranks
- evaluation updates and uses the statistics of the batch
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

from stepladder.labs.equipment.lab_ranks import on_ranks

ROWS, BATCH, MICRO, EPOCHS = 64, 16, 2, 6  # BATCH over all ranks; each makes MICRO micro-batches
RATE, WARMUP, CLIP, SCALE = 0.05, 4, 1.0, 1024.0


def make_data() -> tuple[Tensor, Tensor]:
    x = torch.randn(ROWS, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return x, (x[:, :1] * x[:, 1:2] + x[:, 2:3]).sin()


def make_model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 16), nn.BatchNorm1d(16), nn.Linear(16, 1)
    ).double()


def rows_of_epoch(epoch: int, rank: int, num_ranks: int) -> list[int]:
    """The rows that this rank reads in an epoch, in their order."""
    # >>>
    # ??? Which rows does epoch 1 begin with, and epoch 2?
    # ??? A sampler that is not told the epoch draws the same order each time.
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(epoch))
    # <<< order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(0))
    return order[rank::num_ranks].tolist()


def rate_of(step: int, num_ranks: int) -> float:
    """The learning rate of a step."""
    # >>>
    # ??? Print the rate of ten steps on one rank, on two and on four.
    # ??? Twice the ranks read twice the rows: how much larger may a step be?
    full = RATE * num_ranks
    # <<< full = RATE * num_ranks**2
    return full * min(1.0, (step + 1) / WARMUP)


def gradients_of(model: nn.Module) -> list[Tensor]:
    return [p.grad for p in model.parameters() if p.grad is not None]


def make_gradients(model: nn.Module, x: Tensor, y: Tensor) -> None:
    """Leave SCALE times the gradient of the whole batch in every p.grad; x and y: own rows."""
    for part_x, part_y in zip(x.chunk(MICRO), y.chunk(MICRO)):
        loss = (model(part_x) - part_y).square().mean()
        (loss * SCALE / MICRO).backward()
    for gradient in gradients_of(model):
        dist.all_reduce(gradient)
        # >>>
        # ??? Give two ranks the same rows. Which gradient should they have, and which have they?
        # ??? What all_reduce does by default is written in its documentation.
        gradient /= dist.get_world_size()
        # <<<


def update(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """One step from scaled gradients."""
    # >>>
    # ??? With a gradient of norm 5, how far does SGD with rate 1 move? And with SCALE = 1?
    # ??? CLIP is meant for true gradients. What is in p.grad at that line?
    for gradient in gradients_of(model):
        gradient /= SCALE
    nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    # <<< nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    # <<< for gradient in gradients_of(model):
    # <<<     gradient /= SCALE
    optimizer.step()
    optimizer.zero_grad()


def evaluate(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """The mean loss over all rows."""
    training = model.training
    # >>>
    # ??? Evaluate the same model twice in a row, and on half of the rows. Is anything different?
    # ??? One layer of the model does something else while it trains.
    model.eval()
    # <<<
    with torch.no_grad():
        loss = (model(x) - y).square().mean().item()
    model.train(training)
    return loss


def train(model: nn.Module, x: Tensor, y: Tensor) -> list[float]:
    """The loss of all rows after each epoch, on this rank of those that have met."""
    rank, num_ranks, step = dist.get_rank(), dist.get_world_size(), 0
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    losses = []
    for epoch in range(EPOCHS):
        rows = torch.tensor(rows_of_epoch(epoch, rank, num_ranks))
        for mine in rows.split(BATCH // num_ranks):
            optimizer.param_groups[0]["lr"] = rate_of(step, num_ranks)
            make_gradients(model, x[mine], y[mine])
            update(model, optimizer)
            step += 1
        losses.append(evaluate(model, x, y))
    return losses


def measure() -> list[dict[str, float]]:
    rows = []
    for num_ranks in (1, 2):
        losses = on_ranks(lambda: train(make_model(), *make_data()), num_ranks)[0]
        rows += [
            {"ranks": num_ranks, "epoch": epoch, "loss": loss} for epoch, loss in enumerate(losses)
        ]
    return rows


if __name__ == "__main__":
    for row in measure():
        print(row)
