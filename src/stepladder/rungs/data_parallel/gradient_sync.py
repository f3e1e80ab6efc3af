"""How gradients are synchronised between data-parallel ranks, micro-batch by micro-batch.

Each micro-batch is weighted by its share of the GLOBAL batch's valid targets, so gradients must be
summed over ranks. torch's engines average; multiplying the loss by `ways` undoes that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
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


def sum_in_float32(module: nn.Module, adding: Around) -> Around:
    """The context of a micro-batch of a sharded module whose gradients are added up in float32.

    FSDP2 reduces every micro-batch's gradients and adds the shards up in the parameter's own type.
    In bfloat16 a small gradient vanishes in the sum of the others, so each is taken out as soon as
    its backward is done, and the sum takes its place after the last.
    """
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    sums: dict[nn.Parameter, Tensor] = {}

    @torch.no_grad()
    def take_out() -> None:
        for parameter in trained:
            if parameter.grad is not None:
                found = parameter.grad.float()
                sums[parameter] = sums[parameter].add_(found) if parameter in sums else found
                parameter.grad = None

    @contextmanager
    def around_micro_batch(last: bool) -> Iterator[None]:
        for parameter in trained:
            if parameter.grad is None:
                parameter.grad_dtype = parameter.dtype  # which FSDP2 leaves
        with adding(last):
            yield
            take_out()
            if last:
                for parameter, total in sums.items():
                    parameter.grad_dtype = total.dtype
                    parameter.grad = total
                sums.clear()

    return around_micro_batch
