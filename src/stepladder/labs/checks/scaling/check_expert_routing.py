"""Checks of expert routing: choices counted one by one, and tokens sent to other ranks' experts."""

from __future__ import annotations

import math
from collections import Counter
from types import ModuleType

import torch
import torch.distributed as dist
from torch import Tensor

from stepladder.labs.equipment.lab_ranks import on_ranks
from stepladder.labs.grading.check_words import Mistake, expect, expect_close, written

MISTAKES = (
    Mistake(
        "the weights of the chosen experts do not add up to 1",
        "weights = kept / kept.sum(dim=-1, keepdim=True)",
        "weights = kept",
        "divide them by their sum",
    ),
    Mistake(
        "the capacity counts tokens instead of choices",
        "math.ceil(factor * tokens * choices / experts)",
        "math.ceil(factor * tokens / experts)",
        "every token makes more than one choice",
    ),
    Mistake(
        "a full expert drops the earliest tokens",
        "torch.nn.functional.one_hot(flat, EXPERTS).cumsum(dim=0)",
        "torch.nn.functional.one_hot(flat, EXPERTS).flip(0).cumsum(dim=0).flip(0)",
        "who comes first finds room",
    ),
    Mistake(
        "results are not put back where their tokens came from",
        "out[order] = back",
        "out = back",
        "in the order of the experts, not of the tokens",
    ),
)


def check_the_weights(lesson: ModuleType) -> None:
    """Each token has the experts of its largest logits, with weights that add up to 1."""
    logits = torch.randn(20, 8, generator=torch.Generator().manual_seed(3))
    for choices in (1, 2, 3):
        _, chosen, weights = lesson.route(logits, choices)
        expect_close(chosen, logits.argsort(descending=True)[:, :choices], "the chosen experts")
        sums = written(weights, "weights").sum(dim=-1)
        expect(
            (sums - 1).abs().max() < 1e-5,
            f"{choices} weights of a token add up to {sums[0]:.3f}: divide them by their sum.",
        )
        wanted = [
            [math.exp(logits[t, e]) / sum(math.exp(logits[t, i]) for i in row) for e in row]
            for t, row in enumerate(chosen.tolist())
        ]
        expect_close(weights, wanted, f"the weights of {choices} choices", rtol=1e-4)


def check_the_capacity(lesson: ModuleType) -> None:
    """An expert has room for its fair share of all choices, times the factor."""
    for tokens, choices, experts, factor in ((64, 2, 8, 1.0), (100, 2, 8, 1.25), (10, 1, 3, 1.5)):
        found = written(lesson.capacity(tokens, choices, experts, factor), "capacity")
        wanted = next(n for n in range(10**4) if n * experts >= factor * tokens * choices)
        about = f"{tokens} tokens, {choices} choices, {experts} experts, factor {factor}"
        expect(
            choices == 1 or found >= factor * tokens * choices / experts,
            f"{about}: {found} is less than the share: every token makes more than one choice, and "
            "what is begun counts whole.",
        )
        expect_close(found, wanted, f"the capacity for {about}", rtol=0)


def check_who_finds_room(lesson: ModuleType) -> None:
    """Each expert keeps the first choices, as many as it has room for."""
    chosen = lesson.route(lesson.make_logits(1))[1]
    for limit in (1, 5, 1000):
        found = written(lesson.kept_choices(chosen, limit), "kept_choices").flatten().tolist()
        counts: Counter[int] = Counter()
        wanted = []
        for number in chosen.flatten().tolist():
            wanted.append(counts[number] < limit)
            counts[number] += 1
        expect(
            sum(found) == sum(wanted),
            f"with room for {limit}, {sum(found)} choices are kept, expected {sum(wanted)}.",
        )
        expect(
            found == wanted,
            f"with room for {limit}, not the first choices are kept: who comes first finds room.",
        )


def check_the_balance(lesson: ModuleType) -> None:
    """The balance loss is 1 for a fair router, and the number of experts for one favourite."""
    even = torch.arange(16).view(8, 2) % 8
    fair = torch.full((8, 8), 1 / 8)
    expect_close(lesson.balance_loss(fair, even), 1.0, "the loss where all are used alike")
    one = torch.zeros(8, 8)
    one[:, 3] = 1
    all_to_one = torch.full((8, 1), 3)
    expect_close(lesson.balance_loss(one, all_to_one), 8.0, "the loss where one has everything")
    logits = lesson.make_logits(2).requires_grad_()
    probabilities, chosen, _ = lesson.route(logits)
    loss: Tensor = lesson.balance_loss(probabilities, chosen)
    expect(loss.requires_grad, "the loss has no gradient: the router learns through probabilities.")
    loss.backward()
    assert logits.grad is not None
    pushed = logits.grad.mean(dim=0)
    expect(pushed[:2].min() > 0, "the loss does not push the favourites' logits down.")


def check_experts_on_two_ranks(lesson: ModuleType) -> None:
    """Tokens come back from the other rank with what their experts made of them."""

    def shared(numbers: Tensor, x: Tensor) -> Tensor:
        mine = slice(dist.get_rank(), None, 2)
        return written(lesson.through_experts(x[mine], numbers[mine]), "through_experts")

    random = torch.Generator().manual_seed(4)
    x, numbers = torch.randn(40, 16, generator=random), torch.randint(8, (40,), generator=random)
    for rank, found in enumerate(on_ranks(shared, 2, numbers, x)):
        tokens, own = x[rank::2], numbers[rank::2]
        wanted = torch.stack([lesson.expert(int(n), row) for n, row in zip(own, tokens)])
        order = own.argsort(stable=True)
        expect(
            found.shape != wanted.shape or not torch.allclose(found, wanted[order], atol=1e-4),
            f"rank {rank} has the results in the order of the experts, not of the tokens: put each "
            "where its token came from.",
        )
        expect_close(found, wanted, f"rank {rank}'s tokens after their experts", rtol=1e-4)


def check_equal_parts(lesson: ModuleType) -> None:
    """Where every rank has as many tokens for each rank, plain all_to_all_single does the same."""

    def both() -> tuple[Tensor, Tensor]:
        numbers = torch.tensor([0, 0, 0, 4, 4, 4])  # one expert of each rank
        x = torch.randn(6, 16, generator=torch.Generator().manual_seed(dist.get_rank()))
        arrived, back = torch.empty_like(x), torch.empty_like(x)
        dist.all_to_all_single(arrived, x)
        dist.all_to_all_single(back, lesson.expert(4 * dist.get_rank(), arrived))
        return lesson.through_experts(x, numbers), back

    for rank, (found, wanted) in enumerate(on_ranks(both, 2)):
        expect_close(found, wanted, f"rank {rank}'s tokens beside all_to_all_single", rtol=1e-4)
