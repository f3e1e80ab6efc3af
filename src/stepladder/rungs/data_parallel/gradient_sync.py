"""How gradients are synchronised between data-parallel ranks, micro-batch by micro-batch.

Each micro-batch is weighted by its share of the GLOBAL batch's valid targets, so gradients must be
summed over ranks. torch's engines average; multiplying the loss by `ways` undoes that.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from .gradient_compression import Compression

Around = Callable[[bool], AbstractContextManager[Any]]  # of the last micro-batch?


@dataclass(frozen=True, slots=True)
class GradientSync:
    module: nn.Module  # what a forward pass calls: the module, or DDP around it
    ways: int = 1  # ranks whose gradients are averaged
    around_micro_batch: Around = lambda last: nullcontext()  # context of its forward and backward
    compression: Compression | None = None  # state of gradient compression
    before_backward: Callable[[Tensor, bool], None] = lambda loss, last: None
    after_evaluation: Callable[[], None] = lambda: None  # have ranks agree on what it changed
