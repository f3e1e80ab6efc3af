"""Kernels that keep something else on a GPU than on a CPU, called while a pass is traced for one.

On a CPU torch writes RMSNorm out in small operations, which keep the normalised input in float32;
on a GPU one kernel keeps its input and a statistic.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode


def kernels_of(device: str) -> AbstractContextManager[Any]:
    """A block in which operations keep what they keep on that type of device."""
    return nullcontext() if device == "cpu" else FusedNorms()


class FusedNorms(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (F.rms_norm, torch.rms_norm):
            return fused_rms_norm(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def fused_rms_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    if weight is None:
        weight = input.new_ones(tuple(normalized_shape))
    return RmsNorm.apply(input, weight)


class RmsNorm(torch.autograd.Function):
    """What the kernel keeps and makes; for stand-ins, so the numbers do not matter."""

    @staticmethod
    def forward(context: Any, input: Tensor, weight: Tensor) -> Tensor:
        one_a_row = input.new_empty((*input.shape[: -weight.dim()], 1), dtype=torch.float32)
        context.save_for_backward(input, weight, one_a_row)
        return input * weight

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        input, weight, _ = context.saved_tensors
        return gradients[0] * input, torch.empty_like(weight)
