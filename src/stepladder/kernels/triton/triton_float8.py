"""Triton programs that make 8-bit numbers, in both layouts in one pass.

The matrix units take 8-bit operands only with the summed dimension innermost. A tensor is summed
over one dimension in the forward pass and over the other for a weight's gradient, so each is
written twice, as it is and turned, while its tile is in registers.

Only 16-bit matrices are cast. Turned from float32, tiles come out wrong: the compiler of Triton
3.6 then moves 8-bit numbers between threads in a way that loses some of them.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS, COLUMNS = 128, 64  # of a tile: the turned copy is written in runs of ROWS bytes
WARPS = 8
GRADIENT_COLUMNS, GRADIENT_WARPS = 32, 4  # a gradient's program computes more, and needs room


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
def _store_both(tile, plain, turned, rows, columns, height, width):
    at, inside = _places(rows, columns, height, width)
    tl.store(plain + at, tile, mask=inside)
    at, inside = _places(columns, rows, width, height)
    tl.store(turned + at, tl.trans(tile), mask=inside)


@triton.jit
def _cast(
    values, largest, plain, turned, unit, height, width, LIMIT: tl.constexpr, TINY: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    top = tl.load(largest).to(tl.float32)
    top = tl.where(top < TINY, TINY, top)  # not a maximum: it would lose a NaN
    rows, columns = _tile(width, ROWS, COLUMNS)
    at, inside = _places(rows, columns, height, width)
    scaled = tl.load(values + at, mask=inside, other=0.0).to(tl.float32) * (LIMIT / top)
    _store_both(scaled.to(plain.dtype.element_ty), plain, turned, rows, columns, height, width)
    if tl.program_id(0) == 0:
        tl.store(unit, top / LIMIT)


@triton.jit
def _gradient(
    logits, targets, norms, plain, turned, height, width, ignore_index, LIMIT: tl.constexpr,
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
    _store_both(gradient.to(plain.dtype.element_ty), plain, turned, rows, columns, height, width)


def cast(values: Tensor, largest: Tensor, kind: torch.dtype, tiny: float) -> tuple[Tensor, ...]:
    """A contiguous matrix in 8 bits, the same turned, and what a step of 1 in them is worth."""
    plain, turned = _pair(values, kind)
    unit = torch.empty((), dtype=torch.float32, device=values.device)
    _cast[_grid(values, COLUMNS)](
        values, largest, plain, turned, unit, *values.shape, LIMIT=torch.finfo(kind).max,
        TINY=tiny, ROWS=ROWS, COLUMNS=COLUMNS, num_warps=WARPS,
    )  # fmt: skip
    return plain, turned, unit


def gradient(
    logits: Tensor, targets: Tensor, norms: Tensor, ignore_index: int, kind: torch.dtype
) -> tuple[Tensor, Tensor]:
    """The logits' gradient in 8 bits, in which the largest number stands for 1; and it turned."""
    plain, turned = _pair(logits, kind)
    _gradient[_grid(logits, GRADIENT_COLUMNS)](
        logits, targets, norms, plain, turned, *logits.shape, ignore_index,
        LIMIT=torch.finfo(kind).max, ROWS=ROWS, COLUMNS=GRADIENT_COLUMNS, num_warps=GRADIENT_WARPS,
    )  # fmt: skip
    return plain, turned


def _pair(values: Tensor, kind: torch.dtype) -> tuple[Tensor, Tensor]:
    height, width = values.shape
    plain = torch.empty((height, width), dtype=kind, device=values.device)
    return plain, torch.empty((width, height), dtype=kind, device=values.device)


def _grid(values: Tensor, columns: int) -> tuple[int]:
    height, width = values.shape
    return (triton.cdiv(height, ROWS) * triton.cdiv(width, columns),)
