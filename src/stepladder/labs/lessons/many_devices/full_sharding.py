"""Full sharding: train a model that no rank could hold.

Data parallel keeps a whole copy everywhere. But a layer's weights are needed only while that layer
runs. So every rank owns one piece of each layer, and a layer is put together just in time:

    forward    gather the layer's pieces, multiply, let the whole layer go
    backward   gather them again, compute, let go; add up the gradient over the ranks and keep
               only one's own piece of it (reduce-scatter)

An optimizer then works on pieces and never knows. The price is talking: count how often a layer's
numbers travel, and how often data parallel's do (its all-reduce is a reduce-scatter and a gather).

Claim: 16 layers are 1,024 KiB of weights. Four ranks that may hold 800 KiB of tensors each, less
than the weights alone, train them with the losses of data parallel, which takes 3,076 KiB (weights,
gradients, and buckets to send them). Layers kept gathered for backward save a third of the talking
and take 1,458 KiB. torch's fully_shard has the same losses and stays under the same limit.

Predict: Data parallel's all-reduce makes each of four ranks send 1,536 KiB a step. How many KiB
does each send under full sharding? [sent_kib; strategy = pieces by hand]

Often wrong:
- the piece is a view, so the whole layer stays
- gathered weights are kept for backward
- gradients are summed over ranks but not divided
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from stepladder.labs.equipment import layer_stack as stack
from stepladder.labs.equipment.lab_ranks import on_ranks
from stepladder.labs.equipment.rank_memory_limit import MemoryLimit
from stepladder.measure import Traffic

LIMIT_BYTES = 800 * 1024


def cut(weight: Tensor) -> Tensor:
    """This rank's piece of a weight: one of equal stretches of it, laid flat."""
    # >>> This rank's share of the weight, laid flat; nothing else of the weight may stay in memory.
    # ??? Tensor.flatten, then Tensor.chunk; dist knows which of the chunks is this rank's.
    # ??? A chunk is a view. What does a view keep alive?
    return weight.flatten().chunk(dist.get_world_size())[dist.get_rank()].clone()
    # <<< return weight.flatten().clone()


def gather(piece: Tensor) -> Tensor:
    """The whole weight, from every rank's piece."""
    whole = piece.new_empty(stack.WIDTH, stack.WIDTH)
    # >>> Fill `whole` with the pieces of all ranks.
    # ??? dist.all_gather takes a list of tensors to be filled, and this rank's piece.
    # ??? The list may hold views: what is written to them is written to what they are views of.
    dist.all_gather(list(whole.flatten().chunk(dist.get_world_size())), piece)
    # <<< whole.zero_()
    return whole


def scatter_mean(gradient: Tensor) -> Tensor:
    """This rank's piece of the gradient's mean over all ranks."""
    # >>> This rank's piece of the mean over all ranks.
    # ??? dist.reduce_scatter adds up over the ranks and leaves each of them one of the parts.
    # ??? It takes an empty tensor for this rank's part, and all parts of what this rank has.
    # ??? A sum is not yet a mean.
    chunks = list(gradient.flatten().chunk(dist.get_world_size()))
    mine = torch.empty_like(chunks[0])
    dist.reduce_scatter(mine, chunks)
    return mine / dist.get_world_size()
    # <<< return cut(gradient)


class ShardedLinear(torch.autograd.Function):
    """x @ weight.T, where only a piece of the weight is here."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, piece: Tensor) -> Tensor:
        weight = gather(piece)
        # >>> Keep for backward only what is small.
        # ??? What is saved stays until backward comes. How much would that be, over all layers?
        # ??? Of what forward had, what can be made again when backward needs it?
        ctx.save_for_backward(x, piece)
        # <<< ctx.save_for_backward(x, weight)
        return x @ weight.T

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        # >>> The input and the whole weight, from what was kept.
        # ??? How did forward come by the whole weight?
        # ??? ctx.saved_tensors gives what was saved, in order.
        x, piece = ctx.saved_tensors
        weight = gather(piece)
        # <<< x, weight = ctx.saved_tensors
        return gradient @ weight, scatter_mean(gradient.T @ x)


class Pieces(nn.Module):
    """The stack of layers, of which this rank holds a piece each."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces = nn.ParameterList(
            cut(stack.make_weight(layer)) for layer in range(stack.NUM_LAYERS)
        )

    def forward(self, x: Tensor) -> Tensor:
        for piece in self.pieces:
            x = torch.tanh(ShardedLinear.apply(x, piece))
        return x


def train(make: Callable[[], nn.Module], limit_bytes: int | None = None) -> dict[str, float]:
    """Train two steps under a memory limit: the peak, what a step sends, the last loss."""
    x = stack.make_rows(dist.get_rank())
    with MemoryLimit(limit_bytes) as memory:
        model = make()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        for _ in range(2):
            optimizer.zero_grad()
            with Traffic() as traffic:
                loss = (model(x) - x).square().mean()
                held_bytes = memory.live_bytes
                loss.backward()
            optimizer.step()
    dist.all_reduce(total := loss.detach())
    found = {"peak": memory.peak_bytes, "forward": held_bytes, "sent": traffic.sent_bytes}
    kib = {f"{name}_kib": num_bytes / 1024 for name, num_bytes in found.items()}
    return {**kib, "loss": total.item() / dist.get_world_size()}


def measure() -> list[dict[str, Any]]:
    strategies: dict[str, Callable[[], nn.Module]] = {
        "whole copies": stack.copied,
        "pieces by hand": Pieces,
        "fully_shard": stack.sharded,
        "kept for backward": partial(stack.sharded, keep=True),
        "2 copies of 2 pieces": partial(stack.sharded, shard_ways=2),
    }
    return [{"strategy": name} | on_ranks(train, 4, make)[0] for name, make in strategies.items()]


if __name__ == "__main__":
    for row in measure():
        print(row)
