"""A tiled matmul, and the bytes that it moves.

A GPU has a large slow memory (HBM) and, in each multiprocessor, a small fast one (shared memory and
registers). A matmul that fetches a row and a column for every number of its result fetches the same
numbers again and again. A tiled one (or blocked one) computes the result tile by tile:

    for every tile of the result                     kept in registers until it is complete
        for every pair of tiles along the inner dimension
            load a tile of A and a tile of B          into shared memory, where both must fit
            add their product

What is loaded once is used for a whole row or column of the tile. So larger tiles move fewer bytes,
until they no longer fit. Here fast memory is a Python variable, and slow memory counts.

Claim: a 32 x 32 product in float32 moves 260 KiB number by number and 36 KiB in tiles of 8, as your
formula says before it runs; the result is torch.matmul's. In bf16, tiles of 128 are the largest
power of two of which two fit into the 227 KiB of an H100's block.

Predict: Two 32 x 32 matrices in float32 are multiplied in tiles of 16. How many KiB are moved?
[KiB moved; tile = 16]

Often wrong:
- the result's tile goes through slow memory at every step
- a tile is taken to be reused as often as it has numbers
- the bytes of the result are forgotten
- only one of two tiles has to fit
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class SlowMemory:
    """Hands out tiles of matrices and counts the bytes; tiles at the edge are smaller."""

    def __init__(self) -> None:
        self.loaded = self.stored = 0

    def load(self, matrix: Tensor, row: int, column: int, tile: int) -> Tensor:
        found = matrix[row : row + tile, column : column + tile].clone()
        self.loaded += found.nbytes
        return found

    def store(self, matrix: Tensor, row: int, column: int, values: Tensor) -> None:
        matrix[row : row + values.shape[0], column : column + values.shape[1]] = values
        self.stored += values.nbytes


def multiply(a: Tensor, b: Tensor, tile: int, memory: SlowMemory) -> Tensor:
    """The product of two matrices, a tile of the result after the other."""
    out = torch.zeros(a.shape[0], b.shape[1])
    for row in range(0, a.shape[0], tile):
        for column in range(0, b.shape[1], tile):
            # >>> Compute the tile of the result that begins at (row, column), and store it once.
            # ??? Which tiles of `a` contribute to these rows, and which of `b` to these columns?
            # ???   They come in pairs, one for each step along the inner dimension.
            # ??? Add up in a variable of your own: that is fast memory. memory.store comes after
            # ???   the loop.
            # ??? A number can be the first summand: 0 + tensor is a tensor.
            total: Any = 0
            for inner in range(0, a.shape[1], tile):
                left = memory.load(a, row, inner, tile)
                total = total + left @ memory.load(b, inner, column, tile)
            memory.store(out, row, column, total)
            # <<< pass
    return out


def traffic(size: int, tile: int, width: int) -> float:
    """Bytes moved for a product of two size x size matrices; `width` bytes a number."""
    # >>> Bytes loaded and stored; the tile divides the size.
    # ??? How many tiles has the result, and how many pairs of tiles are loaded for each?
    # ??? Multiply that by the numbers in two tiles: what is left of the tile?
    # ??? And what does storing the result cost?
    return (2 * size**3 / tile + size**2) * width
    # <<< return ...  # type: ignore[return-value]


def largest_tile(shared_bytes: int, width: int) -> int:
    """The largest power of two for which the tiles that are loaded fit into shared memory."""
    tile = 1
    # >>> Double the tile for as long as what is loaded still fits.
    # ??? The result's tile lies in registers. What lies in shared memory at the same time?
    # ??? Would the doubled tile fit? Only then double it.
    while 2 * (2 * tile) ** 2 * width <= shared_bytes:
        tile *= 2
    # <<< pass
    return tile


def measure(size: int = 32) -> list[dict[str, Any]]:
    random = torch.Generator().manual_seed(0)
    a, b = (torch.randn(size, size, generator=random) for _ in range(2))
    rows = []
    for tile in (1, 2, 4, 8, 16, 32):
        memory = SlowMemory()
        multiply(a, b, tile, memory)
        moved = memory.loaded + memory.stored
        row = {"tile": tile, "KiB moved": moved / 1024, "by formula": traffic(size, tile, 4) / 1024}
        shared = 2 * tile**2 * a.element_size()
        rows.append({**row, "FLOPs per byte": 2 * size**3 / moved, "bytes of two tiles": shared})
    return rows


if __name__ == "__main__":
    for row in measure():
        print(row)
