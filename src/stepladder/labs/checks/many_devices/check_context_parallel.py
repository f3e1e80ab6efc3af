"""Checks of attention over a cut sequence: balance, mask, gradients, then the library."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from stepladder.data import Batch
from stepladder.labs.equipment.lab_ranks import hushed, on_ranks
from stepladder.labs.grading.check_words import Mistake, expect, expect_close
from stepladder.train import climb

MISTAKES = (
    Mistake(
        "the mask counts positions within the piece",
        "return everyones <= mine.unsqueeze(-1)",
        "return torch.arange(len(everyones)) <= torch.arange(len(mine)).unsqueeze(-1)",
        "compare positions in the whole sequence",
    ),
    Mistake(
        "each rank keeps only its own part of the keys' gradient",
        """        mine = torch.empty_like(parts[0])
        dist.reduce_scatter(mine, parts)
        return mine
""",
        "        return parts[dist.get_rank()]\n",
        "add up what all ranks found for a key",
    ),
    Mistake(
        "stretches are given out in order",
        "torch.cat((stretches[rank], stretches[2 * ways - 1 - rank]))",
        "torch.cat((stretches[2 * rank], stretches[2 * rank + 1]))",
        "times as many pairs as rank 0: give each an early and a late stretch",
    ),
)


def whole(lesson: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Output and gradients of the whole sequence on one rank."""
    tokens, weight = lesson.make_sequence()
    tokens.requires_grad_(), weight.requires_grad_()
    query, key, value = F.linear(tokens, weight).chunk(3, dim=-1)
    out = F.scaled_dot_product_attention(query, key, value, is_causal=True)
    out.square().sum().backward()
    return out.detach(), tokens.grad, weight.grad


def check_every_token_is_somewhere(lesson: ModuleType) -> None:
    """Two ranks hold all positions between them, half each."""
    found = on_ranks(lesson.positions, 2)
    for rank, mine in enumerate(found):
        expect(len(mine) == 32, f"rank {rank} holds {len(mine)} of 64 tokens, not 32.")
    twice = 64 - len(set(torch.cat(found).tolist()))
    expect(not twice, f"{twice} of 64 positions are on no rank, others on two.")


def check_nobody_looks_ahead(lesson: ModuleType) -> None:
    """A token sees the tokens before it in the whole sequence, and itself."""

    def seen() -> tuple[Tensor, Tensor, Tensor]:
        mine = lesson.positions()
        others = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(others, mine)
        return mine, torch.cat(others), lesson.mask()

    for rank, (mine, others, mask) in enumerate(on_ranks(seen, 2)):
        right = others <= mine.unsqueeze(-1)
        expect(mask.shape == right.shape, f"the mask is {tuple(mask.shape)}, not 32 x 64.")
        for row, column in (mask ^ right).nonzero().tolist():
            may = "may" if mask[row, column] else "may not"
            pair = f"position {int(mine[row])} {may} look at position {int(others[column])}"
            expect(False, f"rank {rank}: {pair}: compare positions in the whole sequence.")


def check_the_work_is_even(lesson: ModuleType) -> None:
    """Every rank looks at the same number of (query, key) pairs."""
    first, second = (found["pairs"] for found in on_ranks(lesson.run, 2))
    expect(
        first == second,
        f"rank 1 looks at {second / first:.1f} times as many pairs as rank 0: give each an early "
        "and a late stretch.",
    )


def check_it_is_the_whole_attention(lesson: ModuleType) -> None:
    """Outputs and gradients are those of scaled_dot_product_attention on the whole sequence."""
    out, tokens_grad, weight_grad = on_ranks(whole, 1, lesson)[0]
    for rank, mine in enumerate(on_ranks(lesson.run, 2)):
        where = mine["positions"]
        expect_close(mine["out"], out[..., where, :], f"the output on rank {rank}")
        wrong = (mine["tokens_grad"] - tokens_grad[..., where, :]).abs().max()
        expect(
            wrong <= 1e-5 * tokens_grad.abs().max(),
            f"the gradients of rank {rank}'s tokens are wrong though its output is right: add up "
            "what all ranks found for a key (reduce_scatter).",
        )
        expect_close(mine["weight_grad"], weight_grad, "the weight's gradient", rtol=1e-4)


class Attention(nn.Module):
    """The lesson's attention as a module, which knows nothing of ranks."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self, tokens: Tensor) -> Tensor:
        query, key, value = F.linear(tokens.unsqueeze(1), self.weight).chunk(3, dim=-1)
        return F.scaled_dot_product_attention(query, key, value, is_causal=True).squeeze(1)


def check_the_library_gives_the_same(lesson: ModuleType) -> None:
    """`stepladder.climb` with context=2 finds the same gradient for a module that is not cut."""

    def climbed() -> Tensor:
        tokens, weight = lesson.make_sequence()
        model, x = Attention(weight), tokens.squeeze(1)
        plan = "fp32 context=2 batch=2 micro=2"
        run = climb(model, loss="squared_error", optimizer="sgd lr=1", plan=plan, device="cpu")
        before = model.weight.detach().clone()
        with hushed():  # DDP on the flag with which climb looks for unused parameters
            run.step(Batch.of((x, torch.zeros_like(x)), position=0, size=2))
        return (before - model.weight.detach()) * x.numel()  # a mean there, a sum here

    mine, theirs = on_ranks(lesson.run, 2)[0], on_ranks(climbed, 2)[0]
    expect_close(mine["weight_grad"], theirs, "the weight's gradient beside climb's", rtol=1e-4)
