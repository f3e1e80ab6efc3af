"""Kernels that keep something else on a GPU than on a CPU, called while a pass is traced for one.

On a CPU torch writes RMSNorm out in small operations, which keep the normalised input in float32;
on a GPU one kernel keeps its input and a statistic. And autocast has another list there: powers,
exponentials and group norms, which a CPU computes in the type they come in, widen to float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from stepladder.seam.pytree import tree_map

NARROW = 2  # bytes
TURNED = 1.25  # of both images: the copies, rounded up to whole tiles

# What CUDA's autocast computes in float32 whatever it is given (torch's documentation, "CUDA Ops
# that autocast to float32"); the losses among them are no part of a module.
WIDENED = {
    "__pow__", "__rdiv__", "__rpow__", "__rtruediv__", "acos", "asin", "cosh", "cosine_similarity",
    "cdist", "cumprod", "cumsum", "dist", "erfinv", "exp", "expm1", "group_norm", "layer_norm",
    "log", "log10", "log_softmax", "log1p", "log2", "norm", "normalize", "pdist", "pow", "prod",
    "reciprocal", "renorm", "rsqrt", "sinh", "softmax", "softmin", "softplus", "sum",
    "tan",
}  # fmt: skip


def kernels_of(device: str) -> AbstractContextManager[Any]:
    """A block in which operations keep what they keep on that type of device."""
    return nullcontext() if device == "cpu" else GpuKernels()


class GpuKernels(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.is_autocast_enabled("cpu") and getattr(func, "__name__", "") in WIDENED:
            args = tree_map(widened, args)
        if func in (F.rms_norm, torch.rms_norm):
            return fused_rms_norm(*args, **(kwargs or {}))
        result = func(*args, **(kwargs or {}))
        if func in (F.conv2d, torch.conv2d) and result.element_size() == NARROW:
            turn_images(args[0], result)
        return result


def turn_images(image: Tensor, result: Tensor) -> None:
    """Hold for a moment, forward and backward, what turning images into another order takes.

    cuDNN's 16-bit kernels read channels innermost; images in torch's own order are copied, what
    goes in and what comes out, and beside them stands the result.
    """
    wide, made = image.numel(), result.numel()
    result.new_empty(round(TURNED * (wide + made)))
    if result.requires_grad:
        result.register_hook(lambda g: forget(g.new_empty(round(TURNED * (wide + made)) + wide)))


def widened(value: Any) -> Any:
    half = isinstance(value, Tensor) and value.dtype in (torch.bfloat16, torch.float16)
    return value.float() if half else value


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


def forget(workspace: Tensor) -> None:
    """Let it go: having been held is what counts."""
