"""Cross-entropy over a large vocabulary without float32 copies of the logits.

The forward pass reads the logits once and saves two float32 numbers a row; the backward pass reads
them again and writes their gradient. With `in_place=True` the forward pass overwrites the logits
with their gradient, so that no second buffer exists and the logits, the largest tensor of most
language models, are read while still in cache; the backward pass only scales, and by 1 not at all.

A row whose target is `ignore_index` does not count and gets a gradient of exactly 0, whatever its
logits are. A target outside the vocabulary makes its loss and its gradient NaN.
"""

from typing import Any

import torch
from torch import Tensor

from stepladder.errors import ModelError, PlanError, nearest

from . import cross_entropy_operators  # noqa: F401  registers the operators

REDUCTIONS = ("sum", "mean", "none")
INTEGERS = (torch.int64, torch.int32)


def cross_entropy(
    logits: Tensor,
    targets: Tensor,
    *,
    ignore_index: int = -100,
    reduction: str = "sum",
    in_place: bool = False,
) -> Tensor:
    """Return the loss of `logits` against class indices: its sum, or mean over valid targets."""
    check_targets(logits.shape, targets)
    check_reduction(reduction, REDUCTIONS)
    if in_place:
        check_reduction(reduction, ("sum", "mean"))
        return _in_place(logits, targets, ignore_index, reduction)
    losses = _CrossEntropy.apply(logits, targets, ignore_index)
    if reduction == "none":
        return losses.view(targets.shape)
    return losses.sum() * share_of_each(targets, ignore_index, reduction)


def check_targets(rows_shape: torch.Size, targets: Tensor) -> None:
    """Refuse targets that are not one class index for each row."""
    if targets.dtype not in INTEGERS:
        problem = f"{targets.dtype} is not a class index"
        raise ModelError(
            "targets", problem, "Give int64 or int32; probabilities are not supported."
        )
    if targets.shape != rows_shape[:-1]:
        problem = f"shape {tuple(targets.shape)} is not one class for each row of"
        shape = tuple(rows_shape)
        raise ModelError("targets", f"{problem} {shape}", f"Give them shape {shape[:-1]}.")


def check_reduction(reduction: str, choices: tuple[str, ...]) -> None:
    """Refuse a reduction that is not among the choices."""
    if reduction not in choices:
        problem = f"'{reduction}' is not a reduction here"
        raise PlanError("reduction", problem, nearest(reduction, choices))


def share_of_each(targets: Tensor, ignore_index: int, reduction: str) -> Tensor:
    """The weight of one row's loss: 1 in a sum, 1 / valid targets in a mean."""
    if reduction == "sum":
        return torch.ones((), dtype=torch.float32, device=targets.device)
    # At least 1: where all targets are ignored the loss is 0, not 0 / 0.
    return (targets != ignore_index).sum().clamp(min=1).float().reciprocal()


def split_share(share: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Split the share into a factor for the forward pass and one for the backward."""
    one = torch.ones_like(share)
    # In fp16 a gradient of 1 / many tokens underflows: it is applied after the loss scale.
    return (one, share) if dtype == torch.float16 else (share, one)


def _in_place(logits: Tensor, targets: Tensor, ignore_index: int, reduction: str) -> Tensor:
    if not logits.is_contiguous():
        problem = f"a view with strides {logits.stride()} cannot be overwritten row by row"
        raise ModelError("logits", problem, "Make them contiguous, or leave in_place off.")
    share = share_of_each(targets, ignore_index, reduction)
    if not (logits.requires_grad and torch.is_grad_enabled()):
        return _CrossEntropy.apply(logits, targets, ignore_index).sum() * share
    return _CrossEntropyInPlace.apply(logits, targets, share, ignore_index)


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, ignore_index: int) -> Tensor:
        op = torch.ops.stepladder.cross_entropy.default
        losses, norms = op(logits, targets, ignore_index)
        ctx.save_for_backward(logits, targets, norms)
        ctx.ignore_index = ignore_index
        return losses

    @staticmethod
    def backward(ctx: Any, dlosses: Tensor) -> tuple[Tensor, None, None]:
        op = torch.ops.stepladder.cross_entropy_backward.default
        return op(dlosses, *ctx.saved_tensors, ctx.ignore_index), None, None


class _CrossEntropyInPlace(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, targets: Tensor, share: Tensor, ignore_index: int
    ) -> Tensor:
        early, late = split_share(share, logits.dtype)
        op = torch.ops.stepladder.cross_entropy_gradient_.default
        losses = op(logits, targets, early, ignore_index)
        ctx.save_for_backward(logits, late)
        return losses.sum() * share

    @staticmethod
    def backward(ctx: Any, dloss: Tensor) -> tuple[Tensor, None, None, None]:
        gradient, late = ctx.saved_tensors
        # In place, so autograd refuses a second backward through it instead of scaling twice.
        torch.ops.stepladder.scale_.default(gradient, dloss * late)
        return gradient.detach(), None, None, None
