"""Context parallel: attention over a sequence that is cut.

A sequence too long for one rank is cut, and everything in a transformer works on its own tokens:
all but attention, where each token looks at all before it. Queries stay where they are; keys and
values of all ranks are gathered, and each rank attends with its own queries to all keys:

    gather     forward, everybody's keys and values; backward, a key was used by all ranks, so
               its gradient is the sum of what they found: a reduce-scatter
    mask       a token may look at tokens before it IN THE SEQUENCE, not in its rank's piece: the
               mask compares positions in the whole sequence
    balance    late tokens look at more than early ones. Cut into twice as many stretches as there
               are ranks, and give each an early one and a late one, so that all work alike

Claim: on 2 and 4 ranks the outputs and gradients are those of scaled_dot_product_attention on the
whole sequence to six digits, and so are those of `stepladder.climb` with context=2; every rank
looks at the same number of (query, key) pairs, where stretches in order would give the last of four
ranks 7 times the first one's.

Predict: 64 tokens make 2,080 (query, key) pairs, each token with itself and all before. On how many
does the last of four ranks work? [pairs; ranks = 4; rank = 3]

Often wrong:
- the mask counts positions within the piece
- each rank keeps only its own part of the keys' gradient
- stretches are given out in order
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F

from stepladder.labs.equipment.lab_ranks import on_ranks

LENGTH, WIDTH = 64, 8


def positions(length: int = LENGTH) -> Tensor:
    """Where this rank's tokens stand in the whole sequence."""
    rank, ways = dist.get_rank(), dist.get_world_size()
    # >>> The places of this rank's tokens: half of them early, half of them late.
    # ??? Cut the sequence into twice as many stretches as there are ranks. Which late one makes up
    # ???   for the first?
    # ??? Write it down for two ranks and four stretches: what do the numbers of a rank's two
    # ???   stretches add up to?
    # ??? Tensor.chunk cuts, torch.cat joins.
    stretches = torch.arange(length).chunk(2 * ways)
    return torch.cat((stretches[rank], stretches[2 * ways - 1 - rank]))
    # <<< return torch.arange(length // ways)


class Gather(torch.autograd.Function):
    """Every rank's tokens (…, tokens, width), rank after rank along the tokens."""

    @staticmethod
    def forward(ctx: Any, piece: Tensor) -> Tensor:
        parts = [torch.empty_like(piece) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, piece.contiguous())
        return torch.cat(parts, dim=-2)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        parts = [p.contiguous() for p in gradient.chunk(dist.get_world_size(), dim=-2)]
        # >>> What all ranks found for this rank's tokens, added up.
        # ??? Every rank used every key, so each has a part of every key's gradient. Where are this
        # ???   rank's?
        # ??? Which collective adds up over the ranks and leaves each one part?
        mine = torch.empty_like(parts[0])
        dist.reduce_scatter(mine, parts)
        return mine
        # <<< return parts[0]


def mask() -> Tensor:
    """Which keys (columns, in the order in which they are gathered) each query here may see."""
    mine = positions()
    everyones = Gather.apply(mine.float().unsqueeze(-1)).squeeze(-1)
    # >>> True where a query of this rank may see a key.
    # ??? `mine` are the places of the queries, `everyones` those of the keys, all in the whole
    # ???   sequence.
    # ??? Queries are rows and keys are columns: one of the two needs another dim to be compared.
    # ??? A token may look at itself.
    return everyones <= mine.unsqueeze(-1)
    # <<< return torch.ones(len(mine), len(everyones), dtype=torch.bool)


def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Causal attention of this rank's tokens to all tokens before them."""
    # >>> Attention of this rank's queries to the keys and values of all ranks.
    # ??? Which of the three have to be gathered?
    # ??? is_causal would count within the piece; attn_mask takes a mask.
    return F.scaled_dot_product_attention(
        query, Gather.apply(key), Gather.apply(value), attn_mask=mask()
    )
    # <<< return F.scaled_dot_product_attention(query, key, value, is_causal=True)


def make_sequence() -> tuple[Tensor, Tensor]:
    """Tokens (batch, heads, length, width), and a weight that makes queries, keys and values."""
    torch.manual_seed(0)
    return torch.randn(2, 1, LENGTH, WIDTH), torch.randn(3 * WIDTH, WIDTH)


def run() -> dict[str, Any]:
    """Forward and backward on this rank's tokens; the weight's gradient is summed over ranks."""
    tokens, weight = make_sequence()
    piece = tokens[..., positions(), :].requires_grad_()
    weight.requires_grad_()
    out = attend(*F.linear(piece, weight).chunk(3, dim=-1))
    out.square().sum().backward()
    assert weight.grad is not None
    dist.all_reduce(weight.grad)
    pairs = int(mask().sum())
    found = {"out": out.detach(), "tokens_grad": piece.grad, "weight_grad": weight.grad}
    return {**found, "positions": positions(), "pairs": pairs}


def measure() -> list[dict[str, Any]]:
    return [
        {"ranks": ranks, "rank": rank, "tokens": len(found["positions"]), "pairs": found["pairs"]}
        for ranks in (1, 2, 4)
        for rank, found in enumerate(on_ranks(run, ranks))
    ]


if __name__ == "__main__":
    for row in measure():
        print(row)
