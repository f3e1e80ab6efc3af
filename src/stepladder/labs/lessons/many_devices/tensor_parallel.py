"""Tensor parallel by hand: one layer computed by several ranks.

A transformer's MLP is y = down(gelu(up(x))). Cut it so that ranks need not talk in the middle:

    up      by columns (rows of torch's weight): each rank computes some of the hidden values.
            gelu looks at each value alone, so it needs nobody
    down    by rows (columns of torch's weight): each rank multiplies the hidden values it has;
            the ranks' results are parts of one sum, so add them up: the one all-reduce

The other order fails: the parts of a sum must be added before gelu, which is not linear. Backward
is the mirror image: x went to all ranks, so its gradient is the sum of all ranks' gradients, and
the sum's gradient goes to all ranks as it is. (Shoeybi and others, "Megatron-LM", 2019.)

Claim: on 2 and 4 ranks outputs and gradients are those of the whole MLP to six digits, with a half
or a quarter of the weights on each rank, one all-reduce forward and one backward; torch's
parallelize_module with ColwiseParallel and RowwiseParallel gives the same.

Often wrong:
- the bias of the second layer is added on every rank
- the gradient of x is not added up
- the gradient of the sum is added up once more
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from stepladder.labs.equipment.collective_traffic import Traffic
from stepladder.labs.equipment.lab_ranks import on_ranks

WIDTH, HIDDEN, ROWS = 16, 64, 8


class ToAll(torch.autograd.Function):
    """The same x for all ranks: nothing to do forward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        # >>> Every rank used x for something else: add up their gradients (dist.all_reduce).
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient
        # <<< return gradient


class AddUp(torch.autograd.Function):
    """The sum of all ranks' parts."""

    @staticmethod
    def forward(ctx: Any, part: Tensor) -> Tensor:
        # >>> Add up the parts of all ranks; not in place, since part is not ours.
        total = part.clone()
        dist.all_reduce(total)
        return total
        # <<< return part.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        # >>> What does a part's gradient look like, where the sum's gradient is this on all ranks?
        return gradient
        # <<< raise NotImplementedError


class CutMLP(nn.Module):
    """This rank's part of an MLP that exists whole."""

    def __init__(self, up: nn.Linear, down: nn.Linear) -> None:
        super().__init__()
        rank, ways = dist.get_rank(), dist.get_world_size()
        # >>> This rank's chunk of up.weight (HIDDEN, WIDTH), up.bias and down.weight (WIDTH,
        # >>> HIDDEN), each along the hidden dimension.
        pieces = up.weight.chunk(ways)[rank], up.bias.chunk(ways)[rank]
        down_piece = down.weight.chunk(ways, dim=1)[rank]
        # <<< pieces, down_piece = (up.weight, up.bias), down.weight
        self.up, self.up_bias = (nn.Parameter(piece.detach().clone()) for piece in pieces)
        self.down = nn.Parameter(down_piece.detach().clone())
        self.down_bias = nn.Parameter(down.bias.detach().clone())  # whole, on all ranks alike

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.gelu(F.linear(ToAll.apply(x), self.up, self.up_bias))
        # >>> Multiply with self.down, add up over the ranks, and add the bias once.
        return AddUp.apply(F.linear(hidden, self.down)) + self.down_bias
        # <<< return F.linear(hidden, self.down, self.down_bias)


def make_whole() -> tuple[nn.Linear, nn.Linear, Tensor]:
    torch.manual_seed(0)
    return nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH), torch.randn(ROWS, WIDTH)


def run() -> dict[str, Any]:
    """Forward and backward on one rank's part: what came out, and what it took."""
    up, down, x = make_whole()
    mlp = CutMLP(up, down)
    with Traffic() as traffic:
        y = mlp(x.requires_grad_())
        forward = traffic.calls["all_reduce"]
        y.square().sum().backward()
    reduces = {"forward": forward, "backward": traffic.calls["all_reduce"] - forward}
    gradients = {name: parameter.grad for name, parameter in mlp.named_parameters()}
    kib = sum(parameter.nbytes for parameter in mlp.parameters()) / 1024
    return {"y": y.detach(), "x": x.grad, **gradients, "weights_kib": kib, **reduces}


def measure() -> list[dict[str, Any]]:
    found = {ranks: on_ranks(run, ranks)[0] for ranks in (1, 2, 4)}
    columns, y = ("weights_kib", "forward", "backward"), found[1]["y"]
    return [
        {"ranks": ranks, **{column: one[column] for column in columns}}
        | {"largest_error": (one["y"] - y).abs().max().item()}
        for ranks, one in found.items()
    ]


if __name__ == "__main__":
    for row in measure():
        print(row)
