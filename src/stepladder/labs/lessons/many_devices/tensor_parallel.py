"""Tensor parallel by hand: one layer computed by several ranks.

A transformer's MLP is y = down(gelu(up(x))). Cut it so that ranks need not talk in the middle:

    up      by columns (rows of torch's weight): each rank computes some of the hidden values.
            gelu looks at each value alone, so it needs nobody
    down    by rows (columns of torch's weight): each rank multiplies the hidden values it has;
            the ranks' results are parts of one sum, so add them up: the one all-reduce

The other order fails: the parts of a sum must be added before gelu, which is not linear. Backward
is the mirror image: where forward only hands out, backward has to collect, and the other way round.
(Shoeybi and others, "Megatron-LM", 2019.)

Claim: on 2 and 4 ranks outputs and gradients are those of the whole MLP to six digits, with a half
or a quarter of the weights on each rank, one all-reduce forward and one backward; torch's
parallelize_module with ColwiseParallel and RowwiseParallel gives the same.

Predict: The whole MLP takes 8.31 KiB: 16 × 64 and 64 × 16 weights, 64 and 16 biases. How many KiB
does each of four ranks hold? [weights_kib; ranks = 4]

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

from stepladder.labs.equipment.lab_ranks import on_ranks
from stepladder.measure import Traffic

WIDTH, HIDDEN, ROWS = 16, 64, 8


class ToAll(torch.autograd.Function):
    """The same x for all ranks: nothing to do forward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        # >>> The whole gradient of x.
        # ??? Each rank multiplied x with weights of its own. Which part of x's gradient does it
        # ???   know?
        # ??? Change a copy: autograd may still need what it gave you.
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient
        # <<< return gradient


class AddUp(torch.autograd.Function):
    """The sum of all ranks' parts."""

    @staticmethod
    def forward(ctx: Any, part: Tensor) -> Tensor:
        # >>> The sum of all ranks' parts, on every rank.
        # ??? Which collective is that? It works in place.
        # ??? `part` is not yours to change.
        total = part.clone()
        dist.all_reduce(total)
        return total
        # <<< return part.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        # >>> The gradient of this rank's part, where this is the sum's gradient.
        # ??? s = a + b: what is a's gradient, when s's is g?
        # ??? Does it take a message to know it?
        return gradient
        # <<< raise NotImplementedError


class CutMLP(nn.Module):
    """This rank's part of an MLP that exists whole."""

    def __init__(self, up: nn.Linear, down: nn.Linear) -> None:
        super().__init__()
        rank, ways = dist.get_rank(), dist.get_world_size()
        # >>> This rank's pieces of up.weight, up.bias and down.weight, each cut along the hidden
        # >>> dimension.
        # ??? torch keeps a Linear's weight as (outputs, inputs). Which of up's two dims is the
        # ???   hidden one, and which of down's?
        # ??? Tensor.chunk takes a dim. dist knows which chunk is this rank's.
        pieces = up.weight.chunk(ways)[rank], up.bias.chunk(ways)[rank]
        down_piece = down.weight.chunk(ways, dim=1)[rank]
        # <<< pieces, down_piece = (up.weight, up.bias), down.weight
        self.up, self.up_bias = (nn.Parameter(piece.detach().clone()) for piece in pieces)
        self.down = nn.Parameter(down_piece.detach().clone())
        self.down_bias = nn.Parameter(down.bias.detach().clone())  # whole, on all ranks alike

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.gelu(F.linear(ToAll.apply(x), self.up, self.up_bias))
        # >>> From this rank's hidden values to the whole output.
        # ??? With only some hidden values, what does the product with self.down give: some of the
        # ???   outputs, or a part of each?
        # ??? How often may the bias be in the result?
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
