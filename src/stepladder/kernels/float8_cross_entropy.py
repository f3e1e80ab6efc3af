"""The output layer and its cross-entropy with products of 8-bit numbers, a chunk at a time.

The logits' gradient lies between −1 and 1 before it is averaged, so its scale is known before it is
computed: it is written in 8 bits, in both layouts, by the program that computes it.
"""

import torch
from torch import Tensor
from torch.nn import functional

from .backend import accumulator, runs_triton
from .cross_entropy_operators import torch_gradient
from .float8_linear import GRADIENTS, TILE, VALUES, Eight, cast, product, whole_tiles

try:
    from .triton import triton_float8 as tiles
except ModuleNotFoundError:
    tiles = None  # type: ignore[assignment]


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
    """Losses and both gradients; an unwanted gradient is empty."""
    features = whole_tiles(hidden.reshape(-1, hidden.shape[-1]))
    classes = targets.reshape(-1)
    classes = functional.pad(classes, (0, len(features) - len(classes)), value=ignore_index)
    matrix, turned_matrix = cast(weight, VALUES)
    largest = features.abs().amax() if len(features) else features.new_zeros(())
    dhidden = torch.empty_like(features if for_hidden else features[:0])
    sums: Tensor | None = None
    losses = torch.empty(len(features), dtype=accumulator(hidden), device=hidden.device)
    step = chunk + -chunk % TILE
    for start in range(0, len(features), step):
        now = slice(start, start + step)
        rows, turned_rows = cast(features[now], VALUES, largest)
        logits = product(rows, matrix, hidden.dtype, quick=True)
        op = torch.ops.stepladder.cross_entropy.default
        losses[now], norms = op(logits, classes[now], ignore_index)
        if not (for_hidden or for_weight):
            continue
        plain, turned = gradient(logits, classes[now], norms, share, ignore_index)
        del logits  # the next products may have its memory
        if for_hidden:
            dhidden[now] = product(plain, turned_matrix, hidden.dtype)
        if for_weight:
            more = product(turned, turned_rows, torch.float32)
            sums = more if sums is None else sums.add_(more)
            del more
    dhidden = dhidden[: targets.numel()].view(hidden.shape) if for_hidden else dhidden
    if sums is None:
        sums = weight.new_zeros(weight.shape if for_weight else 0)
    return losses[: targets.numel()], dhidden, sums.to(weight.dtype)


def gradient(
    logits: Tensor, classes: Tensor, norms: Tensor, share: Tensor, ignore_index: int
) -> tuple[Eight, Eight]:
    """The gradient of the logits in 8 bits, as it is and turned."""
    unit = share / torch.finfo(GRADIENTS).max
    if runs_triton(logits):
        plain, turned = tiles.gradient(logits, classes.contiguous(), norms, ignore_index, GRADIENTS)
    else:
        one = share.new_ones(()).expand(len(logits))
        exact = torch_gradient(logits, classes, norms, one, ignore_index)
        plain = (exact.float() * torch.finfo(GRADIENTS).max).to(GRADIENTS)
        turned = plain.t().contiguous()
    return Eight(plain, unit), Eight(turned, unit)
