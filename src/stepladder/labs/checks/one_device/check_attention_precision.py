"""Checks of attention in few bits: against torch's, in the types where it can go wrong."""

from __future__ import annotations

import math
from types import ModuleType

import torch
from torch.nn.functional import scaled_dot_product_attention

from stepladder.labs.grading.check_words import Mistake, expect, expect_close

MISTAKES = (
    Mistake(
        "the largest score is not subtracted",
        "(scores - scores.amax(-1, keepdim=True)).exp()",
        "scores.exp()",
        "exp(12) is more than float16 has",
    ),
    Mistake(
        "queries are scaled after the product",
        "scores = (q / math.sqrt(q.shape[-1])) @ k.mT\n    return",
        "scores = q @ k.mT / math.sqrt(q.shape[-1])\n    return",
        "the product had overflowed before it was scaled",
    ),
    Mistake(
        "what was collected is not shrunk when a larger score comes",
        "collected = collected * shrink + weights",
        "collected = collected + weights",
        "what was collected before must shrink",
    ),
    Mistake(
        "the sum of exponentials is not shrunk along",
        "total = total * shrink + weights",
        "total = total + weights",
        "the sum must shrink as well",
    ),
)


def check_softmax(lesson: ModuleType) -> None:
    """Softmax of large scores is torch's, in float16 too."""
    scores = torch.tensor([[0.0, 12.0, 11.0], [-300.0, -299.0, -310.0]], dtype=torch.float16)
    found = lesson.softmax(scores)
    finite = bool(found.isfinite().all())
    expect(finite, "not a number: exp(12) is more than float16 has. Subtract the largest score.")
    expect(found.dtype == torch.float16, f"scores in float16 gave {found.dtype}.")
    expect_close(found, scores.softmax(-1), "the softmax", rtol=2e-3)
    ones = lesson.softmax(torch.zeros(1, 70_000, dtype=torch.float16))
    expect(
        ones.any(), "70,000 equal scores gave zeros: the sum is over float16's end, sum in float32."
    )


def check_scaling_comes_first(lesson: ModuleType) -> None:
    """Scores that would overflow before they are scaled do not."""
    q = torch.full((2, 64), 40.0, dtype=torch.float16)
    v = torch.eye(2, 64, dtype=torch.float16)
    found = lesson.stable(q, q, v)  # q @ k is 102,400; scaled first it is 12,800
    finite = bool(found.isfinite().all())
    expect(finite, "not a number: the product had overflowed before it was scaled. Scale q first.")
    expect_close(found, v.float().mean(0).expand(2, 64), "attention between equal keys", rtol=1e-3)


def check_blocks(lesson: ModuleType) -> None:
    """Keys in blocks give what scaled_dot_product_attention gives for all at once."""
    make = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(32, 16, generator=make) for _ in range(3))
    k = k * torch.linspace(0.2, 4, 32)[:, None]  # later keys have larger scores
    wanted = scaled_dot_product_attention(q, k, v)
    expect_close(lesson.stable(q, k, v), wanted, "attention at once", rtol=1e-5)
    expect_close(lesson.blockwise(q, k, v, 32), wanted, "attention in one block", rtol=1e-5)
    found = lesson.blockwise(q, k, v, 8)
    if not torch.allclose(found, wanted, rtol=1e-4, atol=1e-5):
        ones = lesson.blockwise(q, k, torch.ones_like(v), 8)
        high, low = ones.max().item(), ones.min().item()
        expect(high < 1.001, f"weights sum to {high:.3g}, not 1: what was collected before must "
               "shrink by exp(old - new).")  # fmt: skip
        expect(low > 0.999, f"weights sum to {low:.3g}, not 1: the sum must shrink as well.")
    expect_close(found, wanted, "attention in four blocks", rtol=1e-5)


def check_the_errors(lesson: ModuleType) -> None:
    """Where naive fp16 is not a number, the stable ones are right to fp16's accuracy."""
    rows = lesson.measure()
    expect(math.isnan(rows[-1]["naive fp16"]), "the naive one should fail at a size of 30.")
    for name in ("stable fp16", "blockwise fp16"):
        worst = max(row[name] for row in rows[:2])
        expect(worst < 0.01, f"{name} is off by {worst:.1%} where scores are small.")
        expect(math.isfinite(rows[-1][name]), f"{name} is not a number at a size of 30.")
