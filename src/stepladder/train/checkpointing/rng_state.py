"""The state of every random generator a step may draw from, as tensors that can be kept.

A step seeds torch's generators itself, from the run's seed and its own number. Python's and numpy's
belong to whoever uses them, in a model or a transform; kept beside the rest, they go on as well.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor


def read_generators(device: torch.device) -> dict[str, Tensor]:
    words = random.getstate()[1]
    numpy: Any = np.random.get_state(legacy=False)
    keys, position = numpy["state"]["key"], numpy["state"]["pos"]
    states = {
        "python": torch.tensor(words, dtype=torch.int64),
        "numpy": torch.tensor([*keys.tolist(), position], dtype=torch.int64),
        "torch": torch.get_rng_state(),
    }
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def set_generators(states: dict[str, Tensor], device: torch.device) -> None:
    version, _, gauss = random.getstate()
    random.setstate((version, tuple(states["python"].tolist()), gauss))
    *keys, position = states["numpy"].tolist()
    numpy: Any = np.random.get_state(legacy=False)
    numpy["state"] = {"key": np.array(keys, dtype=np.uint32), "pos": position}
    np.random.set_state(numpy)
    torch.set_rng_state(states["torch"])
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)


@contextmanager
def untouched(device: torch.device) -> Iterator[None]:
    """Leave the generators as they are, whatever a forward that does not count draws meanwhile."""
    before = read_generators(device)
    try:
        yield
    finally:
        set_generators(before, device)
