"""Tracing on the CPU as if on a GPU, for operations that save other tensors there.

On a CPU torch composes RMSNorm of small operations, which save the normalised input in float32; on
a GPU one kernel saves its input and a statistic. Dropout saves a byte an element there, not a
factor in the input's type. Attention in float32 whose keys have fewer heads has no fused kernel on
a GPU. Autocast's lists differ too: powers, exponentials and group norms, which a CPU computes in
the type of their inputs, run in float32 on a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
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
        if func in REPLACED:
            return REPLACED[func](*args, **(kwargs or {}))
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


def fused_dropout(
    input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    if inplace or not training or not 0 < p < 1:
        return F.dropout(input, p, training, inplace)
    return torch.native_dropout(input, p, True)[0]


def gpu_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Of small operations where no fused kernel of a GPU takes it.

    Flash attention takes 16-bit heads without a mask; the memory-efficient kernel takes every type
    and mask, but not keys of fewer heads.
    """
    grouped = enable_gqa and key.shape[-3] != query.shape[-3]
    composed = grouped and (query.element_size() != HALF_BYTES or attn_mask is not None)
    with sdpa_kernel(SDPBackend.MATH) if composed else nullcontext():
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )


REPLACED = {
    F.rms_norm: fused_rms_norm,
    torch.rms_norm: fused_rms_norm,
    F.dropout: fused_dropout,
    torch.dropout: fused_dropout,
    F.scaled_dot_product_attention: gpu_attention,
}


def release(workspace: Tensor) -> None:
    """Free the workspace at once: its allocation is what counts for the peak."""
