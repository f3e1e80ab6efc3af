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
SUMS = Operators(("aten.sum.dim_IntList",))
# Of cuBLAS, from its first product on: 4,096 KiB x 8 from Hopper on, and 8.1 MiB before
# (torch/ATen/cuda/CublasHandlePool.cpp).
CUBLAS = 32 * 2**20
FLOAT, ROWS, WIDTH = 4, 128, 32  # bytes; to what flash attention rounds up queries and heads


# Sums of columns (torch/ATen/native/cuda/Reduce.cuh): blocks of 32 x 4 threads, each of which takes
# 4 columns; as many blocks as Hopper's 132 multiprocessors hold, 16 each.
COLUMNS, THREAD_ROWS, BLOCKS = 128, 4, 132 * 16
FEWEST, MOST = 16, 256  # rows that a thread adds up before more blocks share a column


class Workspaces:
    """Bytes that a CUDA kernel allocates and frees while it runs; none on a CPU."""

    def __init__(self, device: str) -> None:
        self.device = device

    @property
    def standing_bytes(self) -> int:
        """What a library keeps from its first call to the end of the process."""
        return 0 if self.device == "cpu" else CUBLAS

    def __call__(self, op: Any, args: Any) -> int:
        if self.device == "cpu":
            return 0
        if op in FLASH_BACKWARD:
            return flash_backward_bytes(args[1])
        return column_sum_bytes(*args[:2]) if op in SUMS and len(args) > 1 else 0


def flash_backward_bytes(query: Any) -> int:
    """The gradient of the queries in float32, and one sum a query, of 16-bit attention.

    torch/ATen/native/transformers/cuda/flash_attn: dq_accum and dsoftmax_sum.
    """
    if query.element_size() != 2:
        return 0
    batch, heads, length, width = query.shape
    rows, columns = -(-length // ROWS) * ROWS, -(-width // WIDTH) * WIDTH
    return int(batch * heads * rows * (columns + 1) * FLOAT)


def column_sum_bytes(matrix: Any, dims: Any) -> int:
    """Partial sums, in float32, of a bias's gradient: a block's worth for each block."""
    columns = matrix.shape[-1] if matrix.dim() > 1 else 0
    if list(dims) != list(range(matrix.dim() - 1)) or columns < COLUMNS:
        return 0
    rows = matrix.numel() // columns
    by_thread = -(-rows // THREAD_ROWS)
    if by_thread < MOST:
        return 0
    wanted = -(-BLOCKS // -(-columns // COLUMNS))
    sharing = max(min(wanted, -(-by_thread // FEWEST)), -(-by_thread // MOST))
    return int(FLOAT * columns * COLUMNS * sharing) if sharing > 1 else 0
