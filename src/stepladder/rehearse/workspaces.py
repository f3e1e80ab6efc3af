"""What kernels take for themselves, which no fake tensor shows, by stated constants."""

from __future__ import annotations

from typing import Any

from stepladder.seam.operators import Operators

FLASH_BACKWARD = Operators(
    (
        "aten._scaled_dot_product_flash_attention_for_cpu_backward.default",
        "aten._scaled_dot_product_flash_attention_backward.default",
    )
)
# Of cuBLAS, from its first product on: 4,096 KiB x 8 from Hopper on, and 8.1 MiB before
# (torch/ATen/cuda/CublasHandlePool.cpp).
CUBLAS = 32 * 2**20
FLOAT, ROWS, WIDTH = 4, 128, 32  # bytes; to what flash attention rounds up queries and heads


class Workspaces:
    """Bytes that a CUDA kernel allocates and frees while it runs; none on a CPU."""

    def __init__(self, device: str) -> None:
        self.device = device

    @property
    def standing_bytes(self) -> int:
        """What a library keeps from its first call to the end of the process."""
        return 0 if self.device == "cpu" else CUBLAS

    def __call__(self, op: Any, args: Any) -> int:
        if self.device == "cpu" or op not in FLASH_BACKWARD:
            return 0
        return flash_backward_bytes(args[1])


def flash_backward_bytes(query: Any) -> int:
    """The gradient of the queries in float32, and one sum a query, of 16-bit attention.

    torch/ATen/native/transformers/cuda/flash_attn: dq_accum and dsoftmax_sum.
    """
    if query.element_size() != 2:
        return 0
    batch, heads, length, width = query.shape
    rows, columns = -(-length // ROWS) * ROWS, -(-width // WIDTH) * WIDTH
    return int(batch * heads * rows * (columns + 1) * FLOAT)
