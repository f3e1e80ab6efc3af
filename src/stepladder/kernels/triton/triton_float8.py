"""Triton programs that cast to fp8 and write a matrix and its transpose in one pass.

The matrix units take fp8 operands only with the summed dimension innermost. A tensor is summed over
one dimension in the forward pass and over the other for a weight's gradient, so each is written
twice, as it is and transposed, while its tile is in registers.

Only 16-bit matrices are cast. Tiles transposed from float32 come out wrong: the compiler of Triton
3.6 loses some values when it moves fp8 numbers between threads.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS, COLUMNS = 128, 64  # of a tile: the transpose is written in runs of ROWS bytes
WARPS = 8
GRADIENT_COLUMNS, GRADIENT_WARPS = 32, 4  # a gradient's program needs more registers


@triton.jit
def _tile(width, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    across = tl.cdiv(width, COLUMNS)
    rows = tl.program_id(0) // across * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(0) % across * COLUMNS + tl.arange(0, COLUMNS)
    return rows, columns


@triton.jit
def _places(rows, columns, height, width):
    inside = (rows < height)[:, None] & (columns < width)[None, :]
    return rows.to(tl.int64)[:, None] * width + columns[None, :], inside


@triton.jit
def _store_both(tile, plain, transposed, rows, columns, height, width):
    at, inside = _places(rows, columns, height, width)
    tl.store(plain + at, tile, mask=inside)
    at, inside = _places(columns, rows, width, height)
    tl.store(transposed + at, tl.trans(tile), mask=inside)


@triton.jit
def _cast(
    values, largest, plain, transposed, scale, height, width,
    LIMIT: tl.constexpr, TINY: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    top = tl.load(largest).to(tl.float32)
    top = tl.where(top < TINY, TINY, top)  # not a maximum: it would lose a NaN
    rows, columns = _tile(width, ROWS, COLUMNS)
    at, inside = _places(rows, columns, height, width)
    scaled = tl.load(values + at, mask=inside, other=0.0).to(tl.float32) * (LIMIT / top)
    _store_both(scaled.to(plain.dtype.element_ty), plain, transposed, rows, columns, height, width)
    if tl.program_id(0) == 0:
        tl.store(scale, top / LIMIT)


@triton.jit
def _gradient(
    logits, targets, norms, plain, transposed, height, width, ignore_index, LIMIT: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    rows, columns = _tile(width, ROWS, COLUMNS)
    at, inside = _places(rows, columns, height, width)
    x = tl.load(logits + at, mask=inside, other=0.0).to(tl.float32)
    there = rows < height
    target = tl.load(targets + rows, mask=there, other=ignore_index)
    top = tl.load(norms + 2 * rows, mask=there, other=0.0)
    log_sum = tl.load(norms + 2 * rows + 1, mask=there, other=0.0)
    counted = target != ignore_index
    scale = tl.where(counted & ((target < 0) | (target >= width)), float("nan"), LIMIT)
    target = tl.where(counted, target, -1).to(tl.int32)  # an ignored class may be one of them
    hit = tl.where(columns[None, :] == target[:, None], 1.0, 0.0)
    gradient = (tl.exp(x - top[:, None] - log_sum[:, None]) - hit) * scale[:, None]
    gradient = tl.where(counted[:, None], gradient, 0.0)  # whatever such a row's logits hold
    _store_both(
        gradient.to(plain.dtype.element_ty), plain, transposed, rows, columns, height, width
    )


def cast(values: Tensor, largest: Tensor, dtype: torch.dtype, tiny: float) -> tuple[Tensor, ...]:
    """A contiguous matrix in fp8, its transpose, and their scale."""
    plain, transposed = _pair(values, dtype)
    scale = torch.empty((), dtype=torch.float32, device=values.device)
    _cast[_grid(values, COLUMNS)](
        values, largest, plain, transposed, scale, *values.shape, LIMIT=torch.finfo(dtype).max,
        TINY=tiny, ROWS=ROWS, COLUMNS=COLUMNS, num_warps=WARPS,
    )  # fmt: skip
    return plain, transposed, scale


def gradient(
    logits: Tensor, targets: Tensor, norms: Tensor, ignore_index: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """The logits' gradient in fp8, where the largest number stands for 1, and its transpose."""
    plain, transposed = _pair(logits, dtype)
    _gradient[_grid(logits, GRADIENT_COLUMNS)](
        logits, targets, norms, plain, transposed, *logits.shape, ignore_index,
        LIMIT=torch.finfo(dtype).max, ROWS=ROWS, COLUMNS=GRADIENT_COLUMNS, num_warps=GRADIENT_WARPS,
    )  # fmt: skip
    return plain, transposed


def _pair(values: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    height, width = values.shape
    plain = torch.empty((height, width), dtype=dtype, device=values.device)
    return plain, torch.empty((width, height), dtype=dtype, device=values.device)


def _grid(values: Tensor, columns: int) -> tuple[int]:
    height, width = values.shape
    return (triton.cdiv(height, ROWS) * triton.cdiv(width, columns),)
