"""FLOPs and MFU: how much arithmetic a step needs, and what share of a machine's it gets.

A product of an (m, k) and a (k, n) matrix is m × n sums of k products: 2 × m × k × n floating-point
operations (a multiply and an add are two). Everything else in a transformer is small beside its
products. Backward makes two products for each of forward's, one for the input's gradient and one
for the weight's, so a training step is three forward passes.

For a weight of N numbers and T tokens this is 2NT forward and 6NT a step: the "6 N" that everybody
quotes. It leaves out attention's scores, which have no weight and grow with the sequence's square.

Model FLOPs utilisation (MFU) = model FLOPs / (seconds × the peak). Model FLOPs are those that the
mathematics needs: what is computed twice to save memory does not count.

Claim: the formula counts a transformer block's forward and backward to the last operation, as
stepladder.model.count_flops and torch's own counter do; 6N is 40 % short at a length of 4 widths.

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
    # >>> m × n sums of k products; a multiply and an add are two.
    return 2 * m * k * n
    # <<< return ...  # type: ignore[return-value]


def block_flops(batch: int, length: int, width: int) -> int:
    """Of one forward pass of the block."""
    tokens = batch * length
    linears = product_flops(tokens, width, (3 + 1 + 4 + 4) * width)
    # >>> Attention makes two products for each sequence: scores q @ k.mT, and scores @ v.
    scores = batch * product_flops(length, width, length)
    mixing = batch * product_flops(length, length, width)
    # <<< scores = mixing = 0
    return linears + scores + mixing


def step_flops(forward: int) -> int:
    """Of forward and backward."""
    # >>> Backward makes two products for each one of forward.
    return 3 * forward
    # <<< return forward


def mfu(forward: int, seconds: float, peak: float, *, recomputed: int = 0) -> float:
    """The share of the peak; `recomputed` FLOPs were done again to save memory."""
    # >>> What the mathematics needs, in a second, as a share of the peak. Is recomputed part of it?
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
