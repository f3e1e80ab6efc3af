"""DDP from scratch.

Two processes train one model twice as fast if each learns from half of every batch and both then
make the same step. Four things make that true, and each is a few lines:

    meet       processes that were started apart learn each other's addresses: a process group
    share      all shuffle the data alike, and rank r takes rows r, r + n, r + 2n, …
    begin      everybody takes rank 0's weights
    average    before a step, everybody's gradients become the mean of all

The mean loss of a batch is the mean of the mean losses of its equal parts, and gradients follow:
so averaged gradients are those of the whole batch, and n ranks do what one does alone.

Claim: your sampler gives the rows of torch's DistributedSampler, and DistributedDataParallel ends
with your weights, bit for bit. (It also sends while backward still runs: that is the lab called
overlap.)

Predict: One rank alone ends three epochs at a loss of 0.4849. Where do four ranks end that learn
from the same batches together? [loss; ranks = 4]

Often wrong:
- every rank shuffles with a seed of its own
- every rank reads all rows
- the ranks begin with different weights
- gradients are summed but not divided
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from stepladder.labs.equipment.lab_ranks import on_ranks

NUM_ROWS, BATCH, EPOCHS = 64, 16, 3


def join(rank: int, num_ranks: int, meeting: str) -> None:
    """Meet the others; `meeting` is a file they all see, as URL. torchrun would offer a port."""
    # >>> Make this process one of num_ranks that meet at `meeting`.
    # ??? torch.distributed has a function for it. Scripts under torchrun call it without arguments,
    # ???   because the environment says the rest; here you say it.
    # ??? It needs a backend that works on a CPU, the place where all meet, and this process's place
    # ???   among them.
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=num_ranks)
    # <<< raise NotImplementedError


def share(num_rows: int, epoch: int) -> list[int]:
    """The rows that this rank reads in an epoch, in order."""
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    # >>> This rank's rows: all ranks shuffle alike, in each epoch anew.
    # ??? torch.randperm shuffles with a generator. Which seed do all ranks know, and which changes
    # ???   from epoch to epoch?
    # ??? All hold the same list now. A slice may begin anywhere and take steps of any length.
    order = torch.randperm(num_rows, generator=torch.Generator().manual_seed(epoch))
    return order[rank::num_ranks].tolist()
    # <<< return list(range(num_rows))


def begin_alike(model: nn.Module) -> None:
    """Give every rank the weights of rank 0."""
    # >>> Give every rank the weights of rank 0, and its buffers.
    # ??? Which collective sends one rank's tensor to all others?
    # ??? It writes into the tensor that it is given. A parameter would not have that, but its data
    # ???   does.
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor.data, src=0)
    # <<< pass


def average_gradients(model: nn.Module) -> None:
    """Turn every gradient into the mean of all ranks' gradients."""
    for parameter in model.parameters():
        assert parameter.grad is not None
        # >>> Make this gradient the mean of all ranks' gradients.
        # ??? Which collective leaves the sum of all ranks' tensors on every rank?
        # ??? A sum is not yet a mean.
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()
        # <<< pass


def make_model(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))


def make_data() -> tuple[Tensor, Tensor]:
    x = torch.randn(NUM_ROWS, 8, generator=torch.Generator().manual_seed(0))
    return x, x.sin().sum(dim=1, keepdim=True)


def train(rank: int, num_ranks: int, meeting: str) -> tuple[list[float], list[Tensor]]:
    """Losses of every step and the weights at the end, on one rank."""
    join(rank, num_ranks, meeting)
    model = make_model(seed=rank)  # as in life: nobody begins where another does
    begin_alike(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    (x, y), losses = make_data(), []
    for epoch in range(EPOCHS):
        for rows in torch.tensor(share(NUM_ROWS, epoch)).split(BATCH // num_ranks):
            optimizer.zero_grad()
            loss = (model(x[rows]) - y[rows]).square().mean()
            loss.backward()
            average_gradients(model)
            optimizer.step()
            shown = loss.detach()
            dist.all_reduce(shown)
            losses.append(shown.item() / num_ranks)
    return losses, [parameter.detach() for parameter in model.parameters()]


def measure() -> list[dict[str, Any]]:
    curves = {n: on_ranks(train, n, join=False)[0][0] for n in (1, 2, 4)}
    return [
        {"ranks": n, "step": step, "loss": loss}
        for n, losses in curves.items()
        for step, loss in enumerate(losses)
    ]


if __name__ == "__main__":
    for row in measure():
        print(row)
