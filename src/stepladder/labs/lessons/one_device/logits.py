"""A loss whose logits never exist whole.

A language model's last layer multiplies every token by a table of all words: 8,192 tokens and
128,000 words are 4 GiB of logits, and their gradient is as much again. But the loss of a token
needs only its own row, and so does the gradient. So go through the tokens in chunks: logits of a
chunk, their loss, their gradient, and from it at once the gradients of the inputs and of the table.
Then the chunk's logits are dropped.

The gradient is computed in forward, where the logits are; backward only multiplies it by what comes
from above.

Claim: loss and gradients are those of torch.nn.functional.cross_entropy on all logits, and the most
logits held at once are one chunk's.

Predict: 256 tokens and 1,000 words are 1,000 KiB of logits. How many KiB stand at once in 16
chunks? [KiB of logits; chunks = 16]

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

from stepladder.labs.equipment.new_tensors import NewTensors


class ChunkedLoss(torch.autograd.Function):
    """Cross-entropy of x @ table.T, over chunks of tokens."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, table: Tensor, targets: Tensor, chunk: int) -> Tensor:
        loss = torch.zeros(())
        x_gradient, table_gradient = torch.zeros_like(x), torch.zeros_like(table)
        for start in range(0, len(x), chunk):
            rows = slice(start, start + chunk)
            logits = x[rows] @ table.T  # (chunk, words): the only ones there are
            picked = targets[rows, None]
            # >>> Add this chunk's part of the mean over ALL tokens.
            # ??? A token's loss is the logarithm of its row's sum of exponentials, less the
            # ???   target's logit.
            # ??? Tensor.logsumexp and Tensor.gather. `picked` has the targets, as a column.
            # ??? By how many tokens is the sum of this chunk divided?
            ours = logits.logsumexp(dim=1, keepdim=True) - logits.gather(1, picked)
            loss += ours.sum() / len(x)
            # <<< pass
            # >>> The gradient of this chunk's part, with respect to its logits.
            # ??? What is the derivative of logsumexp by each logit? It is a function that you know.
            # ??? The target's logit appears once more. What is the sum of a row's gradients, then?
            # ??? And the loss was a mean.
            gradient = logits.softmax(dim=1)
            gradient.scatter_add_(1, picked, -torch.ones_like(picked, dtype=x.dtype))
            gradient /= len(x)
            # <<< gradient = torch.zeros_like(logits)
            # >>> From it the gradient of these rows of x, and this chunk's part of the table's.
            # ??? The logits are a product. The gradient of each factor is a product of the other
            # ???   factor and the result's gradient.
            # ??? Which of the two serves all chunks?
            x_gradient[rows] = gradient @ table
            table_gradient += gradient.T @ x[rows]
            # <<< pass
        ctx.save_for_backward(x_gradient, table_gradient)
        return loss

    @staticmethod
    def backward(ctx: Any, above: Tensor) -> Any:
        x_gradient, table_gradient = ctx.saved_tensors
        # >>> What each of forward's four inputs gets.
        # ??? The loss may be multiplied by something afterwards. `above` says by what.
        # ??? Whole numbers have no gradient.
        return above * x_gradient, above * table_gradient, None, None
        # <<< return x_gradient, table_gradient, None, None


def chunked_loss(x: Tensor, table: Tensor, targets: Tensor, chunk: int) -> Tensor:
    return ChunkedLoss.apply(x, table, targets, chunk)


def measure() -> list[dict[str, float]]:
    make = torch.Generator().manual_seed(0)
    x, table = (torch.randn(n, 32, generator=make) for n in (256, 1000))
    targets = torch.randint(1000, (256,), generator=make)
    rows = []
    for chunks in (1, 4, 16):
        with NewTensors() as new:
            loss = chunked_loss(x, table, targets, 256 // chunks)
        held = max(size for shape, size in new.made if shape[-1:] == (1000,)) / 1024
        rows.append({"chunks": chunks, "loss": loss.item(), "KiB of logits": held})
    return rows


if __name__ == "__main__":
    for row in measure():
        print(row)
