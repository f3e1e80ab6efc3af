"""Tracing on the CPU as if on a GPU, for operations that save other tensors there.

On a CPU torch composes RMSNorm of small operations, which save the normalised input in float32; on
a GPU one kernel saves its input and a statistic. Dropout saves a byte an element there, not a
factor in the input's type. Autocast's lists differ too: powers, exponentials and group norms, which
a CPU computes in the type of their inputs, run in float32 on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from stepladder.seam.pytree import tree_map

HALF_BYTES = 2  # bytes
DROPOUT = 4  # the place of dropout_p among attention's arguments
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

    counts_layout_copies = True  # that convolutions make

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if (
            torch.is_autocast_enabled("cpu")
            and getattr(func, "__name__", "") in AUTOCAST_TO_FLOAT32
        ):
            args = tree_map(to_float32, args)
        if func in REPLACED:
            return REPLACED[func](*args, **(kwargs or {}))
        if func is F.scaled_dot_product_attention:
            args, kwargs = without_dropout(args, kwargs)
        result = func(*args, **(kwargs or {}))
        convolution = self.counts_layout_copies and func in (F.conv2d, torch.conv2d)
        if convolution and result.element_size() == HALF_BYTES:
            allocate_layout_copies(args[0], result)
        return result


def without_dropout(args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Attention's arguments without dropout, for which a CPU would write whole matrices.

    A GPU's kernel draws it as it goes.
    """
    given = [*args]
    if len(given) > DROPOUT:
        given[DROPOUT] = 0.0
    return tuple(given), {**(kwargs or {}), **({} if len(given) > DROPOUT else {"dropout_p": 0.0})}


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
    and mask, but neither keys of fewer heads nor a mask that is trained.
    """
    grouped = enable_gqa and key.shape[-3] != query.shape[-3]
    trained = attn_mask is not None and attn_mask.requires_grad
    wide = query.element_size() != HALF_BYTES and not torch.is_autocast_enabled("cpu")
    if trained or (grouped and (wide or attn_mask is not None)):
        return composed_attention(query, key, value, attn_mask, dropout_p, is_causal, scale)
    return F.scaled_dot_product_attention(  # a CPU would write whole matrices for dropout
        query, key, value, attn_mask, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa
    )


def composed_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout: float,
    causal: bool,
    scale: float | None,
) -> Tensor:
    """Torch's attention of small operations: in float32, whatever the type of the heads."""
    kind = query.dtype
    if torch.is_autocast_enabled("cpu"):
        kind = torch.get_autocast_dtype("cpu")
        query, key, value = (one.to(kind) for one in (query, key, value))
        mask = mask if mask is None or mask.dtype == torch.bool else mask.to(kind)
    with torch.autocast("cpu", enabled=False):
        query, key, value = (one.float() for one in (query, key, value))
        repeats = query.shape[-3] // key.shape[-3]
        if repeats > 1:
            key, value = (one.repeat_interleave(repeats, -3) for one in (key, value))
        if causal:
            shape = (query.shape[-2], key.shape[-2])
            mask = query.new_zeros(shape)
        root = (scale if scale is not None else query.shape[-1] ** -0.5) ** 0.5
        scores = (query * root) @ (key * root).transpose(-2, -1)
        if mask is not None:
            scores += mask.to(scores.dtype)
        weights = torch.softmax(scores, -1)
        if mask is not None:
            weights.new_empty(weights.shape, dtype=torch.bool)  # which rows are masked as a whole
        weights = fused_dropout(weights, dropout) if dropout else weights
        return (weights @ value).to(kind)


def gpu_cross_entropy(input: Tensor, target: Tensor, *given: Any, **named: Any) -> Tensor:
    """A GPU's autocast takes logarithms of 16-bit logits in 16 bits, and widens their loss."""
    narrow = torch.is_autocast_enabled("cpu") and input.element_size() == HALF_BYTES
    known = {"ignore_index", "reduction", "weight"}
    if named.get("label_smoothing") == 0.0:  # torch hands over every default
        named.pop("label_smoothing")
    named = {name: value for name, value in named.items() if value is not None}
    if given or not narrow or target.is_floating_point() or set(named) - known:
        return F.cross_entropy(input, target, *given, **named)
    with torch.autocast("cpu", enabled=False):
        return F.nll_loss(torch.log_softmax(input, 1).float(), target, **named)


REPLACED: dict[Any, Callable[..., Tensor]] = {
    F.rms_norm: fused_rms_norm,
    torch.rms_norm: fused_rms_norm,
    F.dropout: fused_dropout,
    torch.dropout: fused_dropout,
    F.cross_entropy: gpu_cross_entropy,
}


def release(workspace: Tensor) -> None:
    """Free the workspace at once: its allocation is what counts for the peak."""
