"""Triton programs for max pooling of 3 × 3 windows, stride 2 and padding 1, channels-last.

A program takes a row of windows and neighbouring channels of each, so that a thread reads and
writes 16 bytes at once where the channels are a multiple of eight. Pixels are indexed in 32 bits,
whose divisions are cheap, and addressed in 64.

Pixels 2i and 2i + 1 of a side: window i has the first in its middle and the second at its end;
window i + 1 has the second at its start. So a square of four pixels is covered by four windows:

    (2i, 2j)      window i, j at 4
    (2i, 2j + 1)  window i, j at 5      and i, j + 1 at 3
    (2i + 1, 2j)  window i, j at 7      and i + 1, j at 1
    (2i+1, 2j+1)  window i, j at 8,     i, j + 1 at 6,     i + 1, j at 2     and i + 1, j + 1 at 0
"""

import triton
import triton.language as tl
from torch import Tensor

TILE = 1024  # windows times channels of a program
WIDEST = 256  # channels of a program at most
WARPS = 4


@triton.jit
def _wide(value):
    """As float32. bf16 is widened by its bits: the compiler undoes a plain cast, compares two at a
    time, and spends a quarter more instructions on separating the results."""
    if value.dtype == tl.bfloat16:
        bits = value.to(tl.uint16, bitcast=True).to(tl.uint32) << 16
        wide = bits.to(tl.float32, bitcast=True)
    else:
        wide = value.to(tl.float32)
    return wide


@triton.jit
def _forward(
    images, best, winners, num_windows, height, width, rows, columns,
    DEPTH: tl.constexpr, WINDOWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    windows = tl.program_id(0) * WINDOWS + tl.arange(0, WINDOWS)
    channels = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    j = windows % columns
    above = windows // columns
    i = above % rows
    image = above // rows
    there = windows < num_windows
    deep = channels < DEPTH
    top = tl.full((WINDOWS, CHANNELS), -float("inf"), tl.float32)
    # Where all are minus infinity: the first pixel that is not padding.
    first = tl.where(i == 0, 3, 0) + tl.where(j == 0, 1, 0)
    place = tl.zeros((WINDOWS, CHANNELS), tl.int32) + first[:, None]
    for down in tl.static_range(3):
        for across in tl.static_range(3):
            y = 2 * i + (down - 1)
            x = 2 * j + (across - 1)
            inside = there & (y >= 0) & (y < height) & (x >= 0) & (x < width)
            pixel = ((image * height + y) * width + x).to(tl.int64) * DEPTH
            at = images + pixel[:, None] + channels[None, :]
            value = tl.load(at, mask=inside[:, None] & deep[None, :], other=-float("inf"))
            value = _wide(value)
            wins = (value > top) | (value != value)
            top = tl.where(wins, value, top)
            place = tl.where(wins, 3 * down + across, place)
    out = windows.to(tl.int64)[:, None] * DEPTH + channels[None, :]
    mask = there[:, None] & deep[None, :]
    tl.store(best + out, top.to(best.dtype.element_ty), mask=mask)
    tl.store(winners + out, place.to(tl.int8), mask=mask)


@triton.jit
def _read(gradient, winners, window, channels, mask, DEPTH: tl.constexpr):
    """A window's gradient and the position of its maximum; -1 where there is no window."""
    at = window.to(tl.int64)[:, None] * DEPTH + channels[None, :]
    place = tl.load(winners + at, mask=mask, other=-1)
    return tl.load(gradient + at, mask=mask, other=0.0).to(tl.float32), place


@triton.jit
def _backward(
    gradient, winners, out, num_windows, height, width, rows, columns,
    DEPTH: tl.constexpr, WINDOWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    windows = tl.program_id(0) * WINDOWS + tl.arange(0, WINDOWS)
    channels = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    j = windows % columns
    above = windows // columns
    i = above % rows
    image = above // rows
    here = (windows < num_windows)[:, None] & (channels < DEPTH)[None, :]
    right = here & (j + 1 < columns)[:, None]
    below = here & (i + 1 < rows)[:, None]
    g, p = _read(gradient, winners, windows, channels, here, DEPTH)
    g_right, p_right = _read(gradient, winners, windows + 1, channels, right, DEPTH)
    under = windows + columns
    g_below, p_below = _read(gradient, winners, under, channels, below, DEPTH)
    g_last, p_last = _read(gradient, winners, under + 1, channels, right & below, DEPTH)

    pixel = (image * height + 2 * i) * width + 2 * j
    at = out + pixel.to(tl.int64)[:, None] * DEPTH + channels[None, :]
    kind = out.dtype.element_ty
    tl.store(at, tl.where(p == 4, g, 0.0).to(kind), mask=here)
    more_right = here & (2 * j + 1 < width)[:, None]
    total = tl.where(p == 5, g, 0.0) + tl.where(p_right == 3, g_right, 0.0)
    tl.store(at + DEPTH, total.to(kind), mask=more_right)
    at = out + (pixel + width).to(tl.int64)[:, None] * DEPTH + channels[None, :]
    more_below = here & (2 * i + 1 < height)[:, None]
    total = tl.where(p == 7, g, 0.0) + tl.where(p_below == 1, g_below, 0.0)
    tl.store(at, total.to(kind), mask=more_below)
    total = tl.where(p == 8, g, 0.0) + tl.where(p_right == 6, g_right, 0.0)
    total += tl.where(p_below == 2, g_below, 0.0) + tl.where(p_last == 0, g_last, 0.0)
    tl.store(at + DEPTH, total.to(kind), mask=more_right & more_below)


def forward(images: Tensor, best: Tensor, winners: Tensor) -> None:
    """Write every window's maximum and its position."""
    _launch(_forward, (images, best, winners), images, best)


def backward(gradient: Tensor, winners: Tensor, out: Tensor) -> None:
    """Write every pixel's gradient."""
    _launch(_backward, (gradient, winners, out), out, gradient)


def _launch(
    program: triton.JITFunction, tensors: tuple[Tensor, ...], images: Tensor, windows: Tensor
) -> None:
    """Run a program over all windows.

    Args:
        images: a tensor of the images' shape.
        windows: a tensor of the result's shape.
    """
    count, depth, rows, columns = windows.shape
    channels = min(WIDEST, triton.next_power_of_2(depth))
    many = max(1, TILE // channels)
    grid = triton.cdiv(count * rows * columns, many), triton.cdiv(depth, channels)
    program[grid](
        *tensors, count * rows * columns, *images.shape[2:], rows, columns,
        DEPTH=depth, WINDOWS=many, CHANNELS=channels, num_warps=WARPS,
    )  # fmt: skip
