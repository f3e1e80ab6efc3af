"""A loss whose logits never exist whole.

A language model's last layer multiplies every token by a table of all words: 8,192 tokens and
128,000 words are 4 GiB of logits, and their gradient is as much again. But the loss of a token
needs only its own row, and so does the gradient. So go through the tokens in chunks: logits of a
chunk, their loss, their gradient, which is softmax minus one at the target, and from it at once the
gradients of the inputs and of the table. Then the chunk's logits are dropped.

The gradient is computed in forward, where the logits are; backward only multiplies it by what comes
from above.

Claim: loss and gradients are those of torch.nn.functional.cross_entropy on all logits, and the most
logits held at once are one chunk's: 16 times fewer with 16 chunks.

Often wrong:
- the target's one is not taken off the softmax
- each chunk's loss is a mean by itself
- the gradient from above is left out
- the table keeps the gradient of the last chunk only
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class ChunkedLoss(torch.autograd.Function):
    """Cross-entropy of x @ table.T, over chunks of tokens."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, table: Tensor, targets: Tensor, chunk: int) -> Tensor:
        loss = torch.zeros(())
        x_gradient, table_gradient = torch.zeros_like(x), torch.zeros_like(table)
        for start in range(0, len(x), chunk):
            rows = slice(start, start + chunk)
            logits = x[rows] @ table.T  # (chunk, words): the only ones there are
            largest.append(logits.numel())
            picked = targets[rows, None]
            # >>> This chunk's part of the mean over ALL tokens: (logsumexp - the target's logit),
            # >>> summed and divided by the number of all tokens.
            ours = logits.logsumexp(dim=1, keepdim=True) - logits.gather(1, picked)
            loss += ours.sum() / len(x)
            # <<< pass
            # >>> The logits' gradient: softmax, minus one at the target, over the number of tokens.
            gradient = logits.softmax(dim=1)
            gradient.scatter_add_(1, picked, -torch.ones_like(picked, dtype=x.dtype))
            gradient /= len(x)
            # <<< gradient = torch.zeros_like(logits)
            # >>> From it the inputs' gradient, of these rows, and the table's, which adds up.
            x_gradient[rows] = gradient @ table
            table_gradient += gradient.T @ x[rows]
            # <<< pass
        ctx.save_for_backward(x_gradient, table_gradient)
        return loss

    @staticmethod
    def backward(ctx: Any, above: Tensor) -> Any:
        x_gradient, table_gradient = ctx.saved_tensors
        # >>> Both times the gradient from above; targets and chunk have none.
        return above * x_gradient, above * table_gradient, None, None
        # <<< return x_gradient, table_gradient, None, None


largest: list[int] = []  # logits of each chunk, for the measurement


def chunked_loss(x: Tensor, table: Tensor, targets: Tensor, chunk: int) -> Tensor:
    largest.clear()
    return ChunkedLoss.apply(x, table, targets, chunk)


def measure() -> list[dict[str, float]]:
    make = torch.Generator().manual_seed(0)
    x, table = (torch.randn(n, 32, generator=make) for n in (256, 1000))
    targets = torch.randint(1000, (256,), generator=make)
    rows = []
    for chunks in (1, 4, 16):
        loss = chunked_loss(x, table, targets, 256 // chunks)
        held = 4 * max(largest) / 1024
        rows.append({"chunks": chunks, "loss": loss.item(), "KiB of logits": held})
    return rows


if __name__ == "__main__":
    for row in measure():
        print(row)
