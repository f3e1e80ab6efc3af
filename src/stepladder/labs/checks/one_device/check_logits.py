"""Checks of the chunked loss: loss and gradients against torch's, logits counted."""

from __future__ import annotations

from types import ModuleType

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from stepladder.labs.grading.check_words import Mistake, expect, expect_close, is_times

MISTAKES = (
    Mistake(
        "the target's one is not taken off the softmax",
        "            gradient.scatter_add_(1, picked, -torch.ones_like(picked, dtype=x.dtype))\n",
        "",
        "the gradient of a token's logits must sum to zero",
    ),
    Mistake(
        "each chunk's loss is a mean by itself",
        "loss += ours.sum() / len(x)",
        "loss += ours.mean()",
        "4 × too large: a chunk's sum over all tokens",
    ),
    Mistake(
        "the gradient from above is left out",
        "return above * x_gradient, above * table_gradient",
        "return x_gradient, table_gradient",
        "multiply by the gradient from above",
    ),
    Mistake(
        "the table keeps the gradient of the last chunk only",
        "table_gradient += gradient.T @ x[rows]",
        "table_gradient = gradient.T @ x[rows]",
        "the table serves all chunks",
    ),
)


def subject() -> tuple[Tensor, Tensor, Tensor]:
    make = torch.Generator().manual_seed(0)
    x, table = (torch.randn(n, 8, generator=make).requires_grad_() for n in (16, 20))
    return x, table, torch.randint(20, (16,), generator=make)


def check_the_loss(lesson: ModuleType) -> None:
    """The loss is cross_entropy's, whatever the chunk."""
    x, table, targets = subject()
    wanted = cross_entropy(x @ table.T, targets)
    for chunk in (16, 4, 5):
        found = lesson.chunked_loss(x, table, targets, chunk)
        four = chunk == 4 and is_times(found.detach(), wanted.detach(), 4)
        expect(not four, "the loss is 4 × too large: a chunk's sum over all tokens, not its mean.")
        expect_close(found, wanted, f"the loss in chunks of {chunk}")


def check_the_gradients(lesson: ModuleType) -> None:
    """Gradients of inputs and table are cross_entropy's, also of three times the loss."""
    x, table, targets = subject()
    wanted = torch.autograd.grad(cross_entropy(x @ table.T, targets), [x, table])
    found = torch.autograd.grad(lesson.chunked_loss(x, table, targets, 16), [x, table])
    soft = (x @ table.T).softmax(1).detach() @ table.detach() / 16
    forgot = torch.allclose(found[0], soft, rtol=1e-4)
    expect(not forgot, "the gradient of a token's logits must sum to zero: softmax minus one at "
           "the target.")  # fmt: skip
    for name, mine, theirs in zip(("the inputs", "the table"), found, wanted):
        expect_close(mine, theirs, f"the gradient of {name}")
    found = torch.autograd.grad(lesson.chunked_loss(x, table, targets, 4), [x, table])
    whole = torch.allclose(found[1], wanted[1], rtol=1e-4, atol=1e-6)
    expect(whole, "the table's gradient differs in chunks of 4: the table serves all chunks, add.")
    above = torch.autograd.grad(3 * lesson.chunked_loss(x, table, targets, 4), [x, table])
    plain = torch.equal(above[0], found[0])
    expect(not plain, "three times the loss gave the same gradient: multiply by the gradient from "
           "above.")  # fmt: skip
    expect_close(above[0], 3 * wanted[0], "the gradient of three times the loss")


def check_the_logits(lesson: ModuleType) -> None:
    """No more than one chunk's logits stand at once."""
    rows = lesson.measure()
    expect(rows[0]["KiB of logits"] == 16 * rows[2]["KiB of logits"], "16 chunks hold 1/16.")
    expect_close(rows[2]["loss"], rows[0]["loss"], "the loss in 16 chunks")
