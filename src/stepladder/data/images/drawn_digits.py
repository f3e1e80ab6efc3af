"""Digits drawn here: pictures of 28 x 28 like MNIST's, for machines that have no data set.

Each is a glyph of 5 x 7 squares, turned, sheared, stretched and moved at random, with a pen of
random width and noise on top. The same seed draws the same pictures on every machine of one kind.
"""

from __future__ import annotations

import torch
from torch.nn import functional as F

from stepladder.errors import DataError

from .image_folder import Pixels

SIZE = 28
GLYPHS = (  # seven rows of five squares each, from the top
    "01110 10001 10011 10101 11001 10001 01110",
    "00100 01100 00100 00100 00100 00100 01110",
    "01110 10001 00001 00110 01000 10000 11111",
    "11110 00001 00001 01110 00001 00001 11110",
    "00010 00110 01010 10010 11111 00010 00010",
    "11111 10000 11110 00001 00001 10001 01110",
    "00110 01000 10000 11110 10001 10001 01110",
    "11111 00001 00010 00100 01000 01000 01000",
    "01110 10001 10001 01110 10001 10001 01110",
    "01110 10001 10001 01111 00001 00010 01100",
)
TURN, SHEAR, STRETCH, MOVE = 0.25, 0.2, 0.2, 0.25  # largest: radians, shares, of half a picture
NOISE = 0.1  # standard deviation, where ink is 1


def drawn_digits(count: int, *, seed: int = 0) -> Pixels:
    """So many digits as bytes (count, 1, 28, 28) with their labels, every class as often."""
    if count < 1:
        raise DataError("digits", f"{count} is not a number of pictures", "Draw at least 1.")
    draw = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 10
    glyphs = torch.tensor([[[int(dot) for dot in row] for row in g.split()] for g in GLYPHS])
    grid = F.affine_grid(placements(count, draw), [count, 1, SIZE, SIZE], align_corners=False)
    ink = F.grid_sample(glyphs[labels, None].float(), grid, align_corners=False)
    pen = uniform(count, 0.6, 1.6, draw).view(-1, 1, 1, 1)
    pictures = (ink * pen + NOISE * torch.randn(ink.shape, generator=draw)).clamp(0, 1)
    return Pixels((pictures * 255).round().byte().numpy(), labels.numpy())


def placements(count: int, draw: torch.Generator) -> torch.Tensor:
    """For each picture the affine map (count, 2, 3) from its points to those of its glyph."""
    turn, shear = (uniform(count, -most, most, draw) for most in (TURN, SHEAR))
    wide, high = (uniform(count, 1 - STRETCH, 1 + STRETCH, draw) for _ in range(2))
    across, down = (uniform(count, -MOVE, MOVE, draw) for _ in range(2))
    cos, sin = turn.cos(), turn.sin()
    columns, rows = 2.2 * wide, 1.5 * high  # a glyph fills less than half the width, most height
    first = torch.stack([columns * (cos + shear * sin), columns * (shear * cos - sin), across], 1)
    return torch.stack([first, torch.stack([rows * sin, rows * cos, down], 1)], 1)


def uniform(count: int, low: float, high: float, draw: torch.Generator) -> torch.Tensor:
    return low + (high - low) * torch.rand(count, generator=draw)
