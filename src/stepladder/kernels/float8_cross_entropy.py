"""The fused output layer and cross-entropy with fp8 matmuls, a chunk of tokens at a time.

The logits' gradient lies between −1 and 1 before it is averaged, so its scale is known before it is
computed: the program that computes it writes it in fp8, in both layouts.
"""

import torch
from torch import Tensor
from torch.nn import functional

from .backend import accumulator, runs_triton
from .cross_entropy_operators import torch_gradient
from .float8_linear import GRADIENTS, TILE, VALUES, Float8Matrix, cast, float8_matmul, pad_to_tiles

try:
    from .triton import triton_float8 as programs
except ModuleNotFoundError:
    programs = None  # type: ignore[assignment]


def float8_chunks(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    share: Tensor,
    chunk: int,
    ignore_index: int,
    for_hidden: bool,
    for_weight: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Losses and both gradients; a gradient that is not needed is empty."""
    features = pad_to_tiles(hidden.reshape(-1, hidden.shape[-1]))
    classes = targets.reshape(-1)
    classes = functional.pad(classes, (0, len(features) - len(classes)), value=ignore_index)
    matrix, transposed_matrix = cast(weight, VALUES)
    largest = features.abs().amax() if len(features) else features.new_zeros(())
    dhidden = torch.empty_like(features if for_hidden else features[:0])
    sums: Tensor | None = None
    losses = torch.empty(len(features), dtype=accumulator(hidden), device=hidden.device)
    step = chunk + -chunk % TILE
    for start in range(0, len(features), step):
        now = slice(start, start + step)
        rows, transposed_rows = cast(features[now], VALUES, largest)
        logits = float8_matmul(rows, matrix, hidden.dtype, fast=True)
        op = torch.ops.stepladder.cross_entropy.default
        losses[now], norms = op(logits, classes[now], ignore_index)
        if not (for_hidden or for_weight):
            continue
        plain, transposed = gradient(logits, classes[now], norms, share, ignore_index)
        del logits  # the next matmuls reuse its memory
        if for_hidden:
            dhidden[now] = float8_matmul(plain, transposed_matrix, hidden.dtype)
        if for_weight:
            more = float8_matmul(transposed, transposed_rows, torch.float32)
            sums = more if sums is None else sums.add_(more)
            del more
    dhidden = dhidden[: targets.numel()].view(hidden.shape) if for_hidden else dhidden
    if sums is None:
        sums = weight.new_zeros(weight.shape if for_weight else 0)
    return losses[: targets.numel()], dhidden, sums.to(weight.dtype)


def gradient(
    logits: Tensor, classes: Tensor, norms: Tensor, share: Tensor, ignore_index: int
) -> tuple[Float8Matrix, Float8Matrix]:
    """The gradient of the logits in fp8, and its transpose."""
    scale = share / torch.finfo(GRADIENTS).max
    if runs_triton(logits):
        plain, transposed = programs.gradient(
            logits, classes.contiguous(), norms, ignore_index, GRADIENTS
        )
    else:
        one = share.new_ones(()).expand(len(logits))
        exact = torch_gradient(logits, classes, norms, one, ignore_index)
        plain = (exact.float() * torch.finfo(GRADIENTS).max).to(GRADIENTS)
        transposed = plain.t().contiguous()
    return Float8Matrix(plain, scale), Float8Matrix(transposed, scale)
