"""How ranks that see other samples come to the same gradients, pass by pass.

Each pass is weighed by its share of the GLOBAL batch's valid targets, so gradients must be added
up over ranks. torch's engines average; `ways` undoes that before backward.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from torch import nn

from .gradient_compression import Traffic

Passing = Callable[[bool], AbstractContextManager[Any]]  # told whether it is the batch's last pass


@dataclass(frozen=True, slots=True)
class Exchange:
    module: nn.Module  # what a forward pass calls
    ways: int = 1  # ranks whose gradients are averaged
    passing: Passing = lambda last: nullcontext()  # around one pass, forward and backward
    traffic: Traffic | None = None  # of gradients that are compressed
