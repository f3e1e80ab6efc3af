"""Mixed precision in attention, and a softmax that neither overflows nor forgets.

exp(12) is more than float16 has (65,504), so a softmax that exponentiates its scores as they are
becomes inf / inf. But a constant taken off all scores of a row changes nothing in the result.
Scores grow with the head's width, and are scaled by 1/√d for that: where the product itself
overflows, it is too late.

The same ideas let attention go through keys block by block, without a matrix of all scores: keep
the largest score so far, the sum of exponentials and the weighted values; when a larger score
comes, what was collected must shrink to its scale. Sums are kept in float32. This is what flash
attention does.

Claim: naive fp16 attention gives NaN where queries and keys are three times as large as usual; with
the three rules it is as near to float64 as fp16 can be, and the blockwise one is torch's
scaled_dot_product_attention, whose scores never stand in memory together.

Predict: By what share is blockwise attention in bf16 off, for queries and keys of usual size?
[blockwise bf16; size of q and k = 1.0]

Often wrong:
- the largest score is not subtracted
- queries are scaled after the product
- what was collected is not shrunk when a larger score comes
- the sum of exponentials is not shrunk along
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def naive(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention as the formula reads: (length, width) each."""
    weights = (q @ k.mT / math.sqrt(q.shape[-1])).exp()
    return (weights / weights.sum(-1, keepdim=True)) @ v


def softmax(scores: Tensor) -> Tensor:
    """Over the last dim, in the scores' own type, with sums in float32."""
    # >>> Softmax in the scores' own type, right for large scores and for long rows.
    # ??? exp(12) is more than float16 has. What may be taken off every score of a row without a
    # ???   change of the result?
    # ??? After that, which is the largest exponential there can be?
    # ??? 70,000 ones add up to more than float16 has, too. `sum` takes a dtype.
    weights = (scores - scores.amax(-1, keepdim=True)).exp()
    return (weights / weights.sum(-1, keepdim=True, dtype=torch.float32)).to(scores.dtype)
    # <<< return scores.exp() / scores.exp().sum(-1, keepdim=True)


def stable(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention in the inputs' type, without overflow."""
    # >>> Attention whose scores do not overflow before they are scaled.
    # ??? 64 products of 40 and 40 add up to more than float16 has. When is the root of 64 of use?
    # ??? What is divided need not be the scores.
    scores = (q / math.sqrt(q.shape[-1])) @ k.mT
    # <<< scores = q @ k.mT / math.sqrt(q.shape[-1])
    return softmax(scores) @ v


def blockwise(q: Tensor, k: Tensor, v: Tensor, block: int) -> Tensor:
    """The same, over blocks of keys: no more than length × block scores at a time."""
    largest = torch.full((len(q), 1), -math.inf)
    total = torch.zeros(len(q), 1)
    collected = torch.zeros(len(q), v.shape[-1])
    for keys, values in zip(k.split(block), v.split(block)):
        scores = ((q / math.sqrt(q.shape[-1])) @ keys.mT).float()
        new = torch.maximum(largest, scores.amax(-1, keepdim=True))
        weights = (scores - new).exp()
        # >>> Bring what was collected so far to the new largest score; then add this block's part.
        # ??? What was collected used exponentials of (score - largest). Which factor turns them
        # ???   into those of (score - new)?
        # ??? The sum of the exponentials was collected with the old one, too.
        # ??? `weights` are this block's exponentials; values are to be added up in float32.
        shrink = (largest - new).exp()
        total = total * shrink + weights.sum(-1, keepdim=True)
        collected = collected * shrink + weights @ values.float()
        # <<< total, collected = weights.sum(-1, keepdim=True), weights @ values.float()
        largest = new
    return (collected / total).to(q.dtype)


def inputs(size: float, dtype: torch.dtype, length: int = 64, width: int = 64) -> list[Tensor]:
    make = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(length, width, generator=make) for _ in range(3))
    return [(size * q).to(dtype), (size * k).to(dtype), v.to(dtype)]


def error(found: Tensor, exact: Tensor) -> float:
    """Relative to the largest number."""
    return ((found.double() - exact).abs().max() / exact.abs().max()).item()


def measure() -> list[dict[str, float]]:
    rows = []
    for size in (1.0, 3.0, 10.0, 30.0):
        q, k, v = inputs(size, torch.float16)
        exact = stable(q.double(), k.double(), v.double())
        row = {"size of q and k": size, "naive fp16": error(naive(q, k, v), exact)}
        row["stable fp16"] = error(stable(q, k, v), exact)
        row["blockwise fp16"] = error(blockwise(q, k, v, 16), exact)
        brain = blockwise(q.bfloat16(), k.bfloat16(), v.bfloat16(), 16)
        rows.append({**row, "blockwise bf16": error(brain, exact)})
    return rows


if __name__ == "__main__":
    for row in measure():
        print(row)
