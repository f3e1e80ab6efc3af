"""The backward pass of attention.

16-bit attention accumulates the queries' gradient in float32, beside one sum a query
(torch/ATen/native/transformers/cuda/flash_attn: dq_accum and dsoftmax_sum; cuDNN's takes the same
without rounding up), and where queries share keys, the gradients of keys and values for each. The
memory-efficient kernel of float32 multiplies the gradient and the output first, keeps two numbers a
query, and pads short keys to blocks of its own.
"""

from __future__ import annotations

from typing import Any

FLOAT, ROWS, WIDTH = 4, 128, 32  # bytes; to what flash attention rounds up queries and heads
BLOCK_KEYS, SHORT_KEYS, PADDED = 64, 256, 16384  # numbers a head, where short keys fill no block


def attention_backward_bytes(args: Any, result: Any) -> int:
    query, key = args[1], args[2]
    batch, heads, length, width = query.shape
    if query.element_size() != 2:
        uneven = key.shape[-2] % BLOCK_KEYS and key.shape[-2] <= SHORT_KEYS
        padded = batch * heads * (PADDED if uneven else 0)
        return int(FLOAT * (query.numel() + 2 * batch * heads * length + padded))
    rows, columns = -(-length // ROWS) * ROWS, -(-width // WIDTH) * WIDTH
    summed = batch * heads * rows * (columns + 1) * FLOAT
    shared = heads > key.shape[1]
    each = 2 * batch * heads * key.shape[-2] * width * query.element_size() if shared else 0
    return int(summed + each)
