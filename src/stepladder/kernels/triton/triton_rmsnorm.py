"""Triton programs for RMSNorm: a tile of whole rows at a time, sums in float32.

The weight's gradient is a sum over all rows. Atomics would add them in whatever order the
programs finish; here a fixed number of programs each walk a fixed set of rows and write one
partial row, and a second pass adds the partial rows, so two runs agree to the bit.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from stepladder.kernels.backend import num_processors

TILE = 2048  # elements a program holds at least: narrow rows are taken several at a time
ELEMENTS_PER_THREAD = 16
WARPS_PER_PROCESSOR = 16  # in the backward pass: enough to hide memory, few enough partial rows


@triton.jit
def _forward(
    x, weight, y, scales, num_rows, width, x_stride, eps, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK)
    inside = (rows < num_rows)[:, None] & (columns < width)[None, :]
    values = tl.load(x + rows[:, None] * x_stride + columns[None, :], mask=inside, other=0.0)
    values = values.to(tl.float32)
    gain = tl.load(weight + columns, mask=columns < width, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(values * values, axis=1) / width + eps)
    normed = values * scale[:, None] * gain[None, :]
    tl.store(y + rows[:, None] * width + columns[None, :], normed, mask=inside)
    tl.store(scales + rows, scale, mask=rows < num_rows)


@triton.jit
def _backward(
    dy, x, weight, scales, dx, partials, num_rows, width, dy_stride, x_stride,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    in_width = columns < width
    gain = tl.load(weight + columns, mask=in_width, other=0.0).to(tl.float32)[None, :]
    dgain = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
    for tile in range(program, tl.cdiv(num_rows, ROWS), tl.num_programs(0)):
        rows = (tile * ROWS + tl.arange(0, ROWS)).to(tl.int64)
        inside = (rows < num_rows)[:, None] & in_width[None, :]
        at_dy = dy + rows[:, None] * dy_stride + columns[None, :]
        at_x = x + rows[:, None] * x_stride + columns[None, :]
        grad = tl.load(at_dy, mask=inside, other=0.0).to(tl.float32)
        scale = tl.load(scales + rows, mask=rows < num_rows, other=0.0)[:, None]
        normed = tl.load(at_x, mask=inside, other=0.0).to(tl.float32) * scale
        dgain += grad * normed
        grad *= gain
        along = tl.sum(grad * normed, axis=1) / width
        dvalues = (grad - normed * along[:, None]) * scale
        tl.store(dx + rows[:, None] * width + columns[None, :], dvalues, mask=inside)
    tl.store(partials + program * width + columns, tl.sum(dgain, axis=0), mask=in_width)


def _tile(width: int) -> tuple[int, int, int]:
    """Rows and columns of one tile, and the warps that work on it."""
    block = triton.next_power_of_2(width)
    rows = max(1, TILE // block)
    return rows, block, max(1, min(32, rows * block // (32 * ELEMENTS_PER_THREAD)))


def forward(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Normalize the rows of a matrix; also the factor each row was multiplied by."""
    num_rows, width = x.shape
    y = torch.empty((num_rows, width), dtype=x.dtype, device=x.device)
    scales = torch.empty(num_rows, dtype=torch.float32, device=x.device)
    rows, block, warps = _tile(width)
    grid = (triton.cdiv(num_rows, rows),)
    _forward[grid](
        x, weight, y, scales, num_rows, width, x.stride(0), eps,
        ROWS=rows, BLOCK=block, num_warps=warps,
    )  # fmt: skip
    return y, scales


def backward(dy: Tensor, x: Tensor, weight: Tensor, scales: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of the rows and of the weight."""
    num_rows, width = x.shape
    rows, block, warps = _tile(width)
    resident = num_processors(x.device) * max(1, WARPS_PER_PROCESSOR // warps)
    programs = min(triton.cdiv(num_rows, rows), resident)
    dx = torch.empty((num_rows, width), dtype=x.dtype, device=x.device)
    partials = torch.empty((programs, width), dtype=torch.float32, device=x.device)
    _backward[(programs,)](
        dy, x, weight, scales, dx, partials, num_rows, width, dy.stride(0), x.stride(0),
        ROWS=rows, BLOCK=block, num_warps=warps,
    )  # fmt: skip
    return dx, partials.sum(0).to(weight.dtype)
