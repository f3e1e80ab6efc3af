"""FLOPs and MFU: how much arithmetic a step needs, and what share of a machine's it gets.

A product of an (m, k) and a (k, n) matrix makes a number for every row and column, and each is a
sum of k products. A multiply and an add are two floating-point operations. Everything else in a
transformer is small beside its products. Backward makes products of its own: for each of forward's,
one for the input's gradient and one for the weight's.

Counted so for the weights alone, a training step takes "6 N" operations a token, which everybody
quotes. It leaves out attention's scores, which have no weight and grow with the sequence's square.

Model FLOPs utilisation (MFU) is the share of a machine's peak that the model's own arithmetic
reaches. What is computed twice to save memory is not the model's.

Claim: the formula counts a transformer block's forward and backward to the last operation, as
stepladder.model.count_flops and torch's own counter do; 6N is 40 % short at a length of 4 widths.

Predict: A block of width 256 reads sequences of 256. What share of its FLOPs does 6N count?
[6N's share; length = 256]

Often wrong:
- a multiply and its add are counted as one
- backward is counted as much work as forward
- attention's scores are forgotten
- recomputed work raises the MFU
"""

from __future__ import annotations

import time

import torch
from torch import Tensor, nn


class Block(nn.Module):
    """A transformer block's products, nothing else."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:  # (batch, length, width)
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        x = x + self.out((q @ k.mT).softmax(-1) @ v)
        return x + self.down(self.up(x).relu())


def product_flops(m: int, k: int, n: int) -> int:
    """Of an (m, k) matrix times a (k, n) matrix."""
    # >>> Count the operations of one product.
    # ??? How many numbers does the result have, and what does each of them take?
    # ??? Do it for (1, 3) times (3, 1): three multiplies, and how many adds? The field counts the
    # ???   first add as well.
    return 2 * m * k * n
    # <<< return ...  # type: ignore[return-value]


def block_flops(batch: int, length: int, width: int) -> int:
    """Of one forward pass of the block."""
    tokens = batch * length
    linears = product_flops(tokens, width, (3 + 1 + 4 + 4) * width)
    # >>> Attention's two products, of all sequences: the scores, and the scores times the values.
    # ??? Which shapes does q @ k.mT multiply, for one sequence? product_flops counts it.
    # ??? The result is (length, length). With what is it multiplied next?
    # ??? Sequences of a batch do not look at each other: how many such pairs of products are there?
    scores = batch * product_flops(length, width, length)
    mixing = batch * product_flops(length, length, width)
    # <<< scores = mixing = 0
    return linears + scores + mixing


def step_flops(forward: int) -> int:
    """Of forward and backward."""
    # >>> Forward and backward together.
    # ??? y = x @ w: which products give the gradients of x and of w, when y's is known? Write their
    # ???   shapes down.
    # ??? Each has as many operations as forward's own.
    return 3 * forward
    # <<< return forward


def mfu(forward: int, seconds: float, peak: float, *, recomputed: int = 0) -> float:
    """The share of the peak; `recomputed` FLOPs were done again to save memory."""
    # >>> What the mathematics of a step needs, in a second, as a share of the peak.
    # ??? Somebody runs half of forward again to save memory. Has the model grown by that?
    # ??? One of the arguments makes no difference, then.
    return step_flops(forward) / seconds / peak
    # <<< return ...  # type: ignore[return-value]


def seconds_of(call: object) -> float:
    assert callable(call)
    call()
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def measure(width: int = 256, tokens: int = 1024) -> list[dict[str, float]]:
    square = torch.randn(1024, 1024)
    peak = product_flops(1024, 1024, 1024) / seconds_of(lambda: square @ square)
    block, rows = Block(width), []
    for length in (tokens // 16, tokens // 4, tokens):
        x = torch.randn(tokens // length, length, width)
        forward = block_flops(tokens // length, length, width)
        seconds = seconds_of(lambda x=x: block(x).sum().backward())
        six_n = 6 * 12 * width**2 * tokens
        row = {"length": length, "step GFLOP": step_flops(forward) / 1e9, "seconds": seconds}
        row["6N's share"] = six_n / step_flops(forward)
        rows.append({**row, "share of a big product's speed": mfu(forward, seconds, peak)})
    return rows


if __name__ == "__main__":
    for row in measure():
        print(row)
