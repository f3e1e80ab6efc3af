"""A training step with a slow operator in it, to be found from a profile.

The step has a stage of each kind and the seed decides which of them is far too large, so the name
of the slow operator does not stand in the code that calls it.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
from torch import Tensor, nn

LAYERS, WIDTH, ROWS = 4, 64, 16
SMALL = 64  # numbers that a stage works on
LARGE = {  # of the slow one: 10 ms and more, the rest of a step takes 1
    "aten::cumsum": 6_000_000, "aten::digamma": 600_000, "aten::erfinv": 6_000_000,
    "aten::tan": 10_000_000,
}  # fmt: skip
STAGES: dict[str, Callable[[Tensor], Tensor]] = {
    "aten::cumsum": lambda x: x.cumsum(0),
    "aten::digamma": torch.digamma,
    "aten::erfinv": torch.erfinv,
    "aten::tan": torch.tan,
}


class PlantedStep:
    """Forward and backward of a small network, with stages of which one is far too large."""

    def __init__(self, seed: int) -> None:
        slow = planted(seed)
        self.stages = {
            name: torch.full((LARGE[name] if name == slow else SMALL,), 0.25) for name in STAGES
        }
        torch.manual_seed(0)
        self.model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
        self.x = torch.randn(ROWS, WIDTH)

    def __call__(self) -> None:
        self.model.zero_grad()
        self.model(self.x).square().mean().backward()
        for name, x in self.stages.items():
            STAGES[name](x)


def planted(seed: int) -> str:
    """The operator that is slow in a step of this seed."""
    return random.Random(seed).choice(sorted(STAGES))
