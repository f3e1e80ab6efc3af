"""Checks of the tiled matmul: its numbers, the bytes it moves, the formula, and what fits."""

from __future__ import annotations

from types import ModuleType

import torch

from stepladder.labs.grading.check_words import Mistake, expect, expect_close, is_times, written

MISTAKES = (
    Mistake(
        "the result's tile goes through slow memory at every step",
        "                total = total + left @ memory.load(b, inner, column, tile)\n"
        "            memory.store(out, row, column, total)\n",
        "                total = left @ memory.load(b, inner, column, tile)\n"
        "                total = total + memory.load(out, row, column, tile)\n"
        "                memory.store(out, row, column, total)\n",
        "keep the tile of the result in fast memory until it is complete",
    ),
    Mistake(
        "a tile is taken to be reused as often as it has numbers",
        "(2 * size**3 / tile + size**2)",
        "(2 * size**3 / tile**2 + size**2)",
        "a number of a tile is used once for every column, or row, of the other tile",
    ),
    Mistake(
        "the bytes of the result are forgotten",
        "(2 * size**3 / tile + size**2)",
        "(2 * size**3 / tile)",
        "the result is stored, too",
    ),
    Mistake(
        "only one of two tiles has to fit",
        "while 2 * (2 * tile) ** 2 * width <= shared_bytes:",
        "while (2 * tile) ** 2 * width <= shared_bytes:",
        "a tile of each matrix lies in shared memory at the same time",
    ),
)


def check_the_product(lesson: ModuleType) -> None:
    """The product is torch.matmul's, also where tiles at the edges are smaller."""
    random = torch.Generator().manual_seed(1)
    for m, k, n, tile in ((8, 8, 8, 4), (6, 10, 7, 4), (3, 5, 2, 1), (4, 4, 4, 16)):
        a, b = torch.randn(m, k, generator=random), torch.randn(k, n, generator=random)
        found = written(lesson.multiply(a, b, tile, lesson.SlowMemory()), "multiply")
        expect(found.any(), "the result is all zeros: nothing was stored.")
        expect_close(found, torch.matmul(a, b), f"({m}, {k}) @ ({k}, {n}) in tiles of {tile}")


def check_the_bytes_it_moves(lesson: ModuleType) -> None:
    """Every pair of tiles is loaded once, every tile of the result stored once."""
    a = b = torch.ones(16, 16)
    for tile in (2, 4, 8):
        memory = lesson.SlowMemory()
        lesson.multiply(a, b, tile, memory)
        tiles = (16 // tile) ** 2
        pairs, bytes_each = tiles * (16 // tile), 4 * tile**2
        expect(
            memory.stored <= tiles * bytes_each,
            f"tiles of {tile}: {memory.stored} bytes were "
            f"stored for a result of {tiles * bytes_each}: keep the tile of the result in fast "
            "memory until it is complete.",
        )
        expect_close(memory.stored, tiles * bytes_each, f"bytes stored, tiles of {tile}", rtol=0)
        expect_close(
            memory.loaded, 2 * pairs * bytes_each, f"bytes loaded, tiles of {tile}", rtol=0
        )


def check_the_formula(lesson: ModuleType) -> None:
    """The formula says the bytes before anything runs."""
    for size, tile, width in ((16, 4, 4), (64, 8, 2)):
        found = written(lesson.traffic(size, tile, width), "traffic")
        pairs = [
            (i, j, k)
            for i in range(0, size, tile)
            for j in range(0, size, tile)
            for k in range(0, size, tile)
        ]
        loads, stores = 2 * len(pairs) * tile**2 * width, size**2 * width
        about = f"{size} x {size} in tiles of {tile}, {width} bytes a number"
        expect(not is_times(found, loads, 1), f"{about}: {found:g}; the result is stored, too.")
        expect(
            not is_times(found, loads / tile + stores, 1),
            f"{about}: {found:g}; a number of a "
            "tile is used once for every column, or row, of the other tile, not once for every "
            "number of it.",
        )
        expect_close(found, loads + stores, f"bytes for {about}", rtol=0)


def check_what_fits(lesson: ModuleType) -> None:
    """The largest tiles, of both matrices, that fit into shared memory."""
    for shared, width, wanted in ((64 * 1024, 4, 64), (227 * 1024, 2, 128), (128, 4, 4), (8, 4, 1)):
        found = written(lesson.largest_tile(shared, width), "largest_tile")
        about = f"{shared} bytes, {width} bytes a number"
        expect(
            2 * found**2 * width <= shared or found == 1,
            f"{about}: tiles of {found} need "
            f"{2 * found**2 * width} bytes: a tile of each matrix lies in shared memory at the "
            "same time.",
        )
        expect_close(found, wanted, f"the largest tile in {about}", rtol=0)
