"""Mixed precision with sharding.

Every rank keeps a piece of each layer (see full sharding), and three formats meet there:

    kept       a step is often smaller than half a unit of the format, and a sum that rounds back
               to where it was never gets anywhere
    gathered   layers travel and multiply in bf16: fewer bytes, and the matrix units want it
    added up   ranks add their gradients: 1 + 2^-9 is 1 in bf16

Claim: in the right formats fewer bytes travel and twenty steps end within 1 % of fp32's loss; with
pieces kept in bf16 most weights never move at all. The losses are those of torch's fully_shard
under MixedPrecisionPolicy, bit for bit.

Predict: In fp32 a rank sends 1,536 KiB a step: two gathers and a reduce-scatter. How many KiB with
layers gathered in bf16 and gradients added up in fp32? [sent_kib; case = bf16 over fp32 pieces]

Often wrong:
- the piece is gathered in fp32 and cast afterwards
- gradients are added up in bf16
- the pieces themselves are kept in bf16
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy

from stepladder.labs.equipment.lab_ranks import on_ranks
from stepladder.labs.equipment.layer_stack import NUM_LAYERS, WIDTH, make_rows, make_weight, sharded
from stepladder.measure import Traffic

POLICY = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
# >>> The format in which pieces are kept between steps.
# ??? How far apart are bf16's numbers between 0.25 and 0.5? How long is a step of 0.1 times a
# ???   gradient of 0.001?
# ??? Pieces stay where they are: their format costs memory and no time on the wire.
KEPT = torch.float32
# <<< KEPT = torch.bfloat16


def gather(piece: Tensor) -> Tensor:
    """The whole weight in bf16, which is also how it travels."""
    # >>> The whole weight in bf16, of which only bf16 has travelled.
    # ??? Half of the bytes travel only if something happens before they do.
    # ??? As in the lab called full sharding, dist.all_gather fills the chunks of an empty whole. Of
    # ???   which type must that be?
    narrow = piece.to(torch.bfloat16)
    whole = narrow.new_empty(WIDTH, WIDTH)
    dist.all_gather(list(whole.flatten().chunk(dist.get_world_size())), narrow)
    return whole
    # <<< raise NotImplementedError


def scatter_mean(gradient: Tensor) -> Tensor:
    """This rank's piece of the mean gradient, added up in fp32."""
    # >>> This rank's piece of the mean; nothing that bf16 cannot add may be lost.
    # ??? The ranks add in the type of the tensors that they are given.
    # ??? As in the lab called full sharding: one collective, then the mean.
    chunks = list(gradient.float().flatten().chunk(dist.get_world_size()))
    mine = torch.empty_like(chunks[0])
    dist.reduce_scatter(mine, chunks)
    return mine / dist.get_world_size()
    # <<< raise NotImplementedError


class ShardedLinear(torch.autograd.Function):
    """x @ weight.T in bf16, where only a piece of the weight is here."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, piece: Tensor) -> Tensor:
        ctx.save_for_backward(x, piece)
        return x @ gather(piece).T

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, piece = ctx.saved_tensors
        return gradient @ gather(piece), scatter_mean(gradient.T @ x).to(piece.dtype)


class Pieces(nn.Module):
    """The stack of layers, of which this rank holds a piece each."""

    def __init__(self, kept: torch.dtype = KEPT) -> None:
        super().__init__()
        rank, ways = dist.get_rank(), dist.get_world_size()
        weights = (make_weight(layer).flatten().to(kept) for layer in range(NUM_LAYERS))
        self.pieces = nn.ParameterList(weight.chunk(ways)[rank].clone() for weight in weights)

    def forward(self, x: Tensor) -> Tensor:
        x = x.to(torch.bfloat16)
        for piece in self.pieces:
            x = torch.tanh(ShardedLinear.apply(x, piece))
        return x


def train(make: Callable[[], nn.Module], num_steps: int = 20) -> dict[str, Any]:
    """Losses of this rank, the share of weights that moved, KiB sent in a step."""
    model, x = make(), make_rows(dist.get_rank())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    losses = []
    for _ in range(num_steps):
        optimizer.zero_grad()
        with Traffic() as traffic:
            loss = (model(x).float() - x).square().mean()
            loss.backward()
        optimizer.step()
        losses.append(loss.item())
    changes = [(now != then).float().mean() for now, then in zip(model.parameters(), before)]
    found = {"losses": losses, "moved": float(sum(changes)) / NUM_LAYERS}
    return {**found, "sent_kib": traffic.sent_bytes / 1024}


def measure() -> list[dict[str, Any]]:
    cases: dict[str, Callable[[], nn.Module]] = {
        "fp32": sharded,
        "bf16 over fp32 pieces": partial(Pieces, torch.float32),
        "bf16 over bf16 pieces": partial(Pieces, torch.bfloat16),
        "MixedPrecisionPolicy": partial(sharded, mp_policy=POLICY),
    }
    found = {name: on_ranks(train, 2, make)[0] for name, make in cases.items()}
    return [{"case": name, "loss": row.pop("losses")[-1], **row} for name, row in found.items()]


if __name__ == "__main__":
    for row in measure():
        print(row)
