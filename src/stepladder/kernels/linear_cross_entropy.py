"""The output layer fused with its cross-entropy, so that the logits never exist whole.

Logits of 8,192 tokens over 128,256 words take 2 GiB in bf16, and torch keeps them, a float32 copy
and their gradient. Here a chunk of a few thousand tokens at a time goes through the output layer,
and the gradients of its input and its weight are computed at once, while the chunk's logits exist;
the next chunk reuses their buffer. Nothing is computed twice. What is saved for backward is a
gradient of the size of `hidden` and one of the size of `weight`, accumulated in float32.

Where ranks hold slices of the classes, each runs its slice's chunks, and one small message a chunk
makes the loss that of all classes (class_slices.py).
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from stepladder.errors import ModelError, PlanError
from stepladder.kernels.matmul.matmul import multiply
from stepladder.plan.shared_constants import LOGIT_CHUNK

from .backend import accumulator
from .class_slices import ClassSlice, sliced_losses_and_gradient_
from .cross_entropy import check_reduction, check_targets, share_of_each, split_share
from .cross_entropy_operators import losses_and_gradient_by_row_, scale_rows
from .float8_cross_entropy import float8_chunks

# Of a chunk's logits and targets: each row's loss, and the factors by which the overwritten logits
# become their gradient (None: they are it).
Turn = Callable[[Tensor, Tensor], tuple[Tensor, Tensor | None]]

TILE = 64  # rows of the padded matrix come in multiples of it, as matrix units take them


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    chunk: int = LOGIT_CHUNK,
    ignore_index: int = -100,
    reduction: str = "sum",
    float8: bool = False,
    classes: ClassSlice | None = None,
    in_place: bool = True,
) -> Tensor:
    """Return cross_entropy(hidden @ weight.T, targets), `chunk` rows of logits at a time.

    Args:
        float8: the three matmuls are in fp8 (float8_cross_entropy.py).
        classes: which slice of the classes `weight` is, where each of several ranks has one; the
            gradient of `hidden` is then this rank's share of a sum.
        in_place: scale the saved gradients where they are, for one backward pass. Not for a
            schedule that runs backward twice, for inputs and for weights.
    """
    check_targets(hidden.shape, targets)
    check_reduction(reduction, ("sum", "mean"))
    if chunk < 1:
        raise PlanError("chunk", f"{chunk} is not a number of tokens", "Use 1 or more.")
    if weight.dim() != 2 or weight.shape[1] != hidden.shape[-1]:
        problem = f"shape {tuple(weight.shape)} does not take {hidden.shape[-1]} features"
        raise ModelError("weight", problem, f"Give it shape (vocabulary, {hidden.shape[-1]}).")
    hidden = _as_autocast(hidden)
    share = share_of_each(targets, ignore_index, reduction)
    ops = torch.ops.stepladder
    op = ops.float8_linear_cross_entropy if float8 else ops.linear_cross_entropy
    op, slice_of = (op, ()) if classes is None else (ops.sliced_linear_cross_entropy, (*classes,))
    options = op.default, (chunk, ignore_index), slice_of, in_place
    return _LinearCrossEntropy.apply(hidden, weight, targets, share, options)


def _as_autocast(hidden: Tensor) -> Tensor:
    """Cast the features as autocast would; the weight is cast inside, its gradient never."""
    kind = hidden.device.type
    return hidden.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else hidden


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        share: Tensor,
        options: tuple[Any, tuple[int, int], tuple[Any, ...], bool],
    ) -> Tensor:
        early, late = split_share(share, hidden.dtype)
        op, cut, slice_of, ctx.in_place = options
        losses, dhidden, dweight = op(
            hidden, weight, targets, early, *cut, *ctx.needs_input_grad[:2], *slice_of
        )
        ctx.save_for_backward(dhidden, dweight, late)
        ctx.weight_dtype = weight.dtype
        return losses.sum() * share

    @staticmethod
    def backward(ctx: Any, dloss: Tensor) -> tuple[Tensor | None, ...]:
        dhidden, dweight, late = ctx.saved_tensors
        factor = dloss * late
        grads: list[Tensor | None] = [None] * 5
        if ctx.needs_input_grad[0]:
            grads[0] = scaled(dhidden, factor, in_place=ctx.in_place)
        if ctx.needs_input_grad[1]:
            grads[1] = scaled(dweight, factor, in_place=ctx.in_place).to(ctx.weight_dtype)
        return tuple(grads)


def scaled(gradient: Tensor, factor: Tensor, *, in_place: bool) -> Tensor:
    """A saved gradient times a factor."""
    if not in_place:
        return gradient * factor.to(gradient.dtype)
    # Autograd then refuses a second backward through it instead of scaling twice.
    torch.ops.stepladder.scale_.default(gradient, factor)
    return gradient


def _chunks(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    share: Tensor,
    chunk: int,
    ignore_index: int,
    for_hidden: bool,
    for_weight: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    turn = partial(losses_and_gradient_by_row_, share=share, ignore_index=ignore_index)
    return run_chunks(hidden, weight, targets, chunk, turn, for_hidden, for_weight)


def _sliced_chunks(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    share: Tensor,
    chunk: int,
    ignore_index: int,
    for_hidden: bool,
    for_weight: bool,
    first: int,
    ways: int,
    group: str,
) -> tuple[Tensor, Tensor, Tensor]:
    turn = partial(
        sliced_losses_and_gradient_,
        share=share,
        ignore_index=ignore_index,
        classes=ClassSlice(first, ways, group),
    )
    return run_chunks(hidden, weight, targets, chunk, turn, for_hidden, for_weight)


def run_chunks(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    chunk: int,
    turn: Turn,
    for_hidden: bool,
    for_weight: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Losses and both gradients, chunk by chunk; a gradient that is not needed is empty."""
    features = hidden.reshape(-1, hidden.shape[-1]).contiguous()
    classes = targets.reshape(-1)
    matrix = with_aligned_logits(weight.to(hidden.dtype))
    dhidden = torch.empty_like(features if for_hidden else features[:0])
    sums = matrix.new_empty(matrix.shape if for_weight else 0, dtype=accumulator(hidden))
    losses = torch.empty(len(features), dtype=accumulator(hidden), device=hidden.device)
    buffer = hidden.new_empty(min(chunk, len(features)), len(matrix))
    for start in range(0, len(features), chunk):
        now = slice(start, start + chunk)
        # The last chunk has another size in every batch: tuning for it would not pay.
        autotune = len(features) - start >= chunk
        logits = multiply(
            features[now], matrix.T, buffer[: len(features) - start], autotune=autotune
        )
        losses[now], factors = turn(logits[:, : len(weight)], classes[now])
        if for_hidden:
            multiply(logits, matrix, dhidden[now], autotune=autotune)
            scale_rows(dhidden[now], factors, in_place=True)
        if for_weight:  # accumulated in float32, without rounding to 16 bits
            rows = scale_rows(features[now], factors)
            multiply(logits.T, rows, sums, add=start > 0, autotune=autotune)
    if not len(features):
        sums.zero_()
    shape = hidden.shape if for_hidden else dhidden.shape
    return losses, dhidden.view(shape), sums[: len(weight)].to(_gradient_dtype(weight))


def with_aligned_logits(matrix: Tensor) -> Tensor:
    """The matrix with rows of zeros added where its logits' rows would not start at 16 bytes.

    A vocabulary such as GPT-2's 50,257 leaves cuBLAS only kernels of an older generation, several
    times as slow on an H200. The added logits are zero, and so is their gradient: the loss reads
    and writes only the others.
    """
    aligned = matrix.element_size() * len(matrix) % 16 == 0
    return matrix if aligned else functional.pad(matrix, (0, 0, 0, -len(matrix) % TILE))


def _gradient_dtype(weight: Tensor) -> torch.dtype:
    """The type a weight's gradient is saved in: fp16 would overflow before it is scaled."""
    return torch.float32 if weight.dtype == torch.float16 else weight.dtype


def _fake_chunks(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    share: Tensor,
    chunk: int,
    ignore_index: int,
    for_hidden: bool,
    for_weight: bool,
    *slice_of: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    losses = hidden.new_empty(targets.numel(), dtype=accumulator(hidden))
    dhidden = hidden.new_empty(hidden.shape if for_hidden else (0, hidden.shape[-1]))
    dweight = weight.new_empty(weight.shape if for_weight else (0,), dtype=_gradient_dtype(weight))
    return losses, dhidden, dweight


OPERATORS: dict[str, tuple[Callable[..., Any], str]] = {
    "stepladder::linear_cross_entropy": (_chunks, ""),
    "stepladder::float8_linear_cross_entropy": (float8_chunks, ""),
    "stepladder::sliced_linear_cross_entropy": (_sliced_chunks, ", int first, int ways, str group"),
}
for name, (implementation, more) in OPERATORS.items():
    torch.library.define(
        name,
        "(Tensor hidden, Tensor weight, Tensor targets, Tensor share, int chunk, int ignore_index,"
        f" bool for_hidden, bool for_weight{more}) -> (Tensor, Tensor, Tensor)",
    )
    torch.library.impl(name, ("cpu", "cuda"), implementation)
    torch.library.register_fake(name, _fake_chunks)
