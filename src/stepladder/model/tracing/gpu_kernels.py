"""Tracing on the CPU as if on a GPU, for operations that save other tensors there.

On a CPU torch composes RMSNorm of small operations, which save the normalised input in float32; on
a GPU one kernel saves its input and a statistic. Autocast's lists differ too: powers, exponentials
and group norms, which a CPU computes in the type of their inputs, run in float32 on a GPU.
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

HALF_BYTES = 2  # bytes
LAYOUT_COPY_FACTOR = 1.25  # size of the copies of input and output, rounded up to whole tiles

# From torch's documentation, "CUDA Ops that autocast to float32", without the losses.
AUTOCAST_TO_FLOAT32 = {
    "__pow__", "__rdiv__", "__rpow__", "__rtruediv__", "acos", "asin", "cosh", "cosine_similarity",
    "cdist", "cumprod", "cumsum", "dist", "erfinv", "exp", "expm1", "group_norm", "layer_norm",
    "log", "log10", "log_softmax", "log1p", "log2", "norm", "normalize", "pdist", "pow", "prod",
    "reciprocal", "renorm", "rsqrt", "sinh", "softmax", "softmin", "softplus", "sum",
    "tan",
}  # fmt: skip


def device_kernels(device: str) -> AbstractContextManager[Any]:
    """Context in which operations save what they save on that type of device."""
    return nullcontext() if device == "cpu" else GpuKernels()


class GpuKernels(TorchFunctionMode):
    """Replaces operations by versions that save what their CUDA kernels save."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if (
            torch.is_autocast_enabled("cpu")
            and getattr(func, "__name__", "") in AUTOCAST_TO_FLOAT32
        ):
            args = tree_map(to_float32, args)
        if func in (F.rms_norm, torch.rms_norm):
            return fused_rms_norm(*args, **(kwargs or {}))
        result = func(*args, **(kwargs or {}))
        if func in (F.conv2d, torch.conv2d) and result.element_size() == HALF_BYTES:
            allocate_layout_copies(args[0], result)
        return result


def allocate_layout_copies(image: Tensor, result: Tensor) -> None:
    """Allocate and free, in forward and backward, the memory that layout conversion takes.

    cuDNN's 16-bit kernels want channels-last images; images in torch's default layout are copied,
    both input and output.
    """
    wide, made = image.numel(), result.numel()
    result.new_empty(round(LAYOUT_COPY_FACTOR * (wide + made)))
    if result.requires_grad:
        result.register_hook(
            lambda g: release(g.new_empty(round(LAYOUT_COPY_FACTOR * (wide + made)) + wide))
        )


def to_float32(value: Any) -> Any:
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
    """Saves and returns what the kernel does; for fake tensors, so the numbers do not matter."""

    @staticmethod
    def forward(context: Any, input: Tensor, weight: Tensor) -> Tensor:
        one_a_row = input.new_empty((*input.shape[: -weight.dim()], 1), dtype=torch.float32)
        context.save_for_backward(input, weight, one_a_row)
        return input * weight

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        input, weight, _ = context.saved_tensors
        return gradients[0] * input, torch.empty_like(weight)


def release(workspace: Tensor) -> None:
    """Free the workspace at once: its allocation is what counts for the peak."""
