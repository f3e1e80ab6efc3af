"""Sums of columns, as of a bias's gradient (torch/ATen/native/cuda/Reduce.cuh).

Blocks of 32 x 4 threads, each of which takes 4 columns; as many blocks as Hopper's 132
multiprocessors hold, 16 each. Where blocks share a column, each leaves a partial sum in float32.
"""

from __future__ import annotations

from typing import Any

FLOAT = 4  # bytes
COLUMNS, THREAD_ROWS, BLOCKS = 128, 4, 132 * 16
FEWEST, MOST = 16, 256  # rows that a thread adds up before more blocks share a column


def column_sum_bytes(args: Any, result: Any) -> int:
    matrix, dims = args[0], args[1] if len(args) > 1 else None
    columns = matrix.shape[-1] if matrix.dim() > 1 else 0
    if dims is None or list(dims) != list(range(matrix.dim() - 1)) or columns < COLUMNS:
        return 0
    rows = matrix.numel() // columns
    by_thread = -(-rows // THREAD_ROWS)
    if by_thread < MOST:
        return 0
    wanted = -(-BLOCKS // -(-columns // COLUMNS))
    sharing = max(min(wanted, -(-by_thread // FEWEST)), -(-by_thread // MOST))
    return int(FLOAT * columns * COLUMNS * sharing) if sharing > 1 else 0
