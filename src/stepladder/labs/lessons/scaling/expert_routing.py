"""A mixture of experts: routing, capacity, balance, and experts on several ranks.

A layer has several networks (experts), and a router sends each token to the k that suit it best. So
a model can have many parameters and compute with few of them. Four things make it work:

    weights     softmax over all experts; the k largest are kept and made to add up to 1
    capacity    every expert computes at most so many tokens, a fixed number, that buffers have the
                same size at every step: its fair share of all choices, times a factor for bad luck.
                Later tokens that find an expert full are dropped: they pass by it
    balance     a router that once prefers an expert trains it, and prefers it more. An auxiliary
                loss (Switch Transformer, Fedus and others, 2021) is least when all are used alike:
                over the experts, the sum of the share of choices that went there times the mean
                probability that it was given, times the number of experts
    all-to-all  with experts on several ranks every rank sends each token to the rank of its expert
                and gets it back: torch.distributed.all_to_all_single

Claim: tokens that two ranks send to each other's experts come back with the numbers that one rank
with all experts computes. With 8 experts, 2 choices a token and a factor of 1.25, a router that
favours two experts drops a fifth of the choices, and a fair one less than a twentieth.

Predict: 64 tokens choose 2 of 8 experts each, and the capacity factor is 1.25. How many tokens does
an expert compute at most? [capacity; router = fair]

Often wrong:
- the weights of the chosen experts do not add up to 1
- the capacity counts tokens instead of choices
- a full expert drops the earliest tokens
- results are not put back where their tokens came from
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from stepladder.labs.equipment.lab_ranks import on_ranks

EXPERTS, CHOICES, TOKENS, WIDTH, FACTOR = 8, 2, 64, 16, 1.25


def route(logits: Tensor, choices: int = CHOICES) -> tuple[Tensor, Tensor, Tensor]:
    """Probabilities of all experts; the chosen ones and their weights, (tokens, choices) each."""
    probabilities = logits.softmax(dim=-1)
    # >>> The most probable experts of each token, and weights that add up to 1.
    # ??? Tensor.topk gives the largest values along the last dimension, and where they stand.
    # ??? What do the kept probabilities add up to, and what should they?
    kept, chosen = probabilities.topk(choices, dim=-1)
    weights = kept / kept.sum(dim=-1, keepdim=True)
    # <<< weights, chosen = probabilities[:, :choices], torch.zeros(len(logits), choices).long()
    return probabilities, chosen, weights


def capacity(tokens: int, choices: int, experts: int, factor: float) -> int:
    """How many tokens an expert computes at most."""
    # >>> The fair share of all choices times the factor, rounded up.
    # ??? How many choices do all tokens make together?
    # ??? If all experts were chosen equally often, how many would one have?
    return math.ceil(factor * tokens * choices / experts)
    # <<< return tokens


def kept_choices(chosen: Tensor, limit: int) -> Tensor:
    """Which choices find room: for each expert the first `limit`, in the order of the tokens."""
    flat = chosen.flatten()
    # >>> For every choice, whether fewer than `limit` earlier ones have the same expert.
    # ??? A one-hot matrix has a row a choice and a column an expert. What does a running sum down
    # ???   a column count?
    # ??? torch.nn.functional.one_hot and Tensor.cumsum; a choice counts itself, too.
    # ??? gather picks from each row the column of its own expert.
    seen = torch.nn.functional.one_hot(flat, EXPERTS).cumsum(dim=0)
    room = seen.gather(1, flat.unsqueeze(1)).squeeze(1) <= limit
    # <<< room = torch.ones_like(flat, dtype=torch.bool)
    return room.view_as(chosen)


def balance_loss(probabilities: Tensor, chosen: Tensor) -> Tensor:
    """1 where all experts are used alike, up to their number where one has everything."""
    # >>> As the text says: over the experts, share of choices times mean probability.
    # ??? torch.bincount counts how often each expert was chosen; a share is that over all choices.
    # ??? The shares have no gradient, the probabilities do: the router learns through them.
    share = torch.bincount(chosen.flatten(), minlength=EXPERTS) / chosen.numel()
    return EXPERTS * (share * probabilities.mean(dim=0)).sum()
    # <<< return ...  # type: ignore[return-value]


def expert(number: int, x: Tensor) -> Tensor:
    """What one expert makes of tokens."""
    weight = torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(number))
    return (x @ weight / WIDTH**0.5).relu()


def through_experts(x: Tensor, numbers: Tensor) -> Tensor:
    """Every row through its expert, which stands on rank number // (experts a rank)."""
    each = EXPERTS // dist.get_world_size()
    order = numbers.argsort(stable=True)  # by expert, and so by rank
    sends = torch.bincount(numbers // each, minlength=dist.get_world_size())
    receives = torch.empty_like(sends)
    dist.all_to_all_single(receives, sends)
    there, here = sends.tolist(), receives.tolist()
    packed = torch.cat([x, numbers.unsqueeze(1).float()], dim=1)[order]
    arrived = packed.new_empty(sum(here), WIDTH + 1)
    dist.all_to_all_single(arrived, packed, here, there)
    done = torch.zeros(sum(here), WIDTH)
    for number in arrived[:, -1].long().unique().tolist():
        mine = arrived[:, -1] == number
        done[mine] = expert(number, arrived[mine, :-1])
    # >>> Send the results back, and put each where its token came from.
    # ??? all_to_all_single takes the output, the input, how many rows come from each rank and how
    # ???   many go to each. On the way back, who receives what he had sent?
    # ??? Row i of what comes back belongs to token order[i]: an index can stand on the left, too.
    back, out = torch.empty_like(x), torch.empty_like(x)
    dist.all_to_all_single(back, done, there, here)
    out[order] = back
    # <<< out = torch.zeros_like(x)
    return out


def make_logits(favoured: int, tokens: int = TOKENS) -> Tensor:
    """What a router says of random tokens; it prefers the first experts, so many of them."""
    logits = 3 * torch.randn(tokens, EXPERTS, generator=torch.Generator().manual_seed(0))
    logits[:, :favoured] += 3
    return logits


def measure() -> list[dict[str, Any]]:
    rows, limit = [], capacity(TOKENS, CHOICES, EXPERTS, FACTOR)
    for router, favoured in (("fair", 0), ("one favourite", 1), ("two favourites", 2)):
        probabilities, chosen, _ = route(make_logits(favoured))
        dropped = 1 - kept_choices(chosen, limit).float().mean().item()
        row = {"router": router, "capacity": limit, "dropped": dropped}
        rows.append({**row, "balance loss": balance_loss(probabilities, chosen).item()})
    numbers = route(make_logits(0))[1][:, 0]
    x = torch.randn(TOKENS, WIDTH, generator=torch.Generator().manual_seed(1))
    alone, shared = (on_ranks(through_experts, ranks, x, numbers)[0] for ranks in (1, 2))
    return [*rows, {"router": "2 ranks against 1", "furthest": (alone - shared).abs().max().item()}]


if __name__ == "__main__":
    for row in measure():
        print(row)
