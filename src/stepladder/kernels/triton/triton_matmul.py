"""Two Triton programs for a product of matrices, to compare with the library's: no operator uses
them.

`by_element` gives each lane one element of the result. A lane reads a whole row and a whole column
from memory, two numbers for a multiplication and an addition; what its neighbours read as well
comes from a cache, and nothing else is shared. With as many lanes as a block has threads this is
the kernel that a first CUDA course writes.

`by_tile` gives each program a tile. It brings a piece of each matrix on chip and multiplies the
pieces in the matrix units (tl.dot), so that each number it reads is used for a whole row or column
of the tile. Programs that run at the same time lie in bands of a few tiles' height, and so find
what they read in the L2 cache.

Matrices are contiguous, sums are in float32. Offsets within a tile are 32 bits wide.
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

WARPS = 4
LANES = 32 * WARPS  # of a program by element: one a thread


@dataclass(frozen=True, slots=True)
class Tile:
    """A program's share of the result, and how it is computed."""

    rows: int
    columns: int
    inner: int  # of each piece that is brought on chip
    warps: int
    stages: int  # pieces that are on their way or in use at once
    band: int = 8  # tiles high

    def shared_bytes(self, element_bytes: int) -> int:
        return (self.rows + self.columns) * self.inner * element_bytes * self.stages


LARGE = Tile(128, 256, 64, warps=8, stages=3)
SMALL = Tile(128, 128, 32, warps=8, stages=3)


@triton.jit
def _by_element(left, right, out, size, width, inner, LANES: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    inside = at < size
    row = left + at // width * inner
    column = right + at % width
    total = tl.zeros((LANES,), dtype=tl.float32)
    for _ in range(0, inner):
        x = tl.load(row, mask=inside, other=0.0).to(tl.float32)
        y = tl.load(column, mask=inside, other=0.0).to(tl.float32)
        total += x * y
        row += 1
        column += width
    tl.store(out + at, total.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _by_tile(
    left, right, out, height, width, inner,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr, BAND: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    across = tl.cdiv(width, COLUMNS)
    top = program // (BAND * across) * BAND
    high = tl.minimum(tl.cdiv(height, ROWS) - top, BAND)
    place = program % (BAND * across)
    i = (top + place % high).to(tl.int64) * ROWS
    j = (place // high).to(tl.int64) * COLUMNS
    rows, columns, deep = tl.arange(0, ROWS), tl.arange(0, COLUMNS), tl.arange(0, INNER)
    down = (rows < height - i)[:, None]
    aside = (columns < width - j)[None, :]
    x_at = left + i * inner + (rows[:, None] * inner + deep[None, :])
    y_at = right + j + (deep[:, None] * width + columns[None, :])
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for start in range(0, inner, INNER):
        there = deep < inner - start
        x = tl.load(x_at, mask=down & there[None, :], other=0.0)
        y = tl.load(y_at, mask=aside & there[:, None], other=0.0)
        total = tl.dot(x, y, total)
        x_at += INNER
        y_at += INNER * width
    out_at = out + i * width + j + (rows[:, None] * width + columns[None, :])
    tl.store(out_at, total.to(out.dtype.element_ty), mask=down & aside)


def by_element(left: Tensor, right: Tensor) -> tuple[Tensor, Any]:
    """The product by a lane an element, and the compiled program."""
    (height, inner), width = left.shape, right.shape[1]
    out = torch.empty((height, width), dtype=left.dtype, device=left.device)
    programs = (triton.cdiv(out.numel(), LANES),)
    compiled = _by_element[programs](
        left, right, out, out.numel(), width, inner, LANES=LANES, num_warps=WARPS
    )
    return out, compiled


def by_tile(left: Tensor, right: Tensor, tile: Tile) -> tuple[Tensor, Any]:
    """The product by a tile a program, and the compiled program."""
    (height, inner), width = left.shape, right.shape[1]
    out = torch.empty((height, width), dtype=left.dtype, device=left.device)
    programs = (triton.cdiv(height, tile.rows) * triton.cdiv(width, tile.columns),)
    compiled = _by_tile[programs](
        left, right, out, height, width, inner, ROWS=tile.rows, COLUMNS=tile.columns,
        INNER=tile.inner, BAND=tile.band, num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return out, compiled


def tile_for(device: torch.device, element_bytes: int = 2) -> Tile:
    """The large tile where a block may have the shared memory that its pieces take."""
    if device.type != "cuda":
        return SMALL
    facts = torch.cuda.get_device_properties(device)
    most = getattr(facts, "shared_memory_per_block_optin", 0)
    return LARGE if LARGE.shared_bytes(element_bytes) <= most else SMALL
