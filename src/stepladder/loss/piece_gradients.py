"""Whether the gradients of pieces of a batch add up to the whole's, where their losses do.

A loss that divides by a detached sum has the right value in pieces and another gradient. Only the
loss is computed again, on outputs that are known: the gradient with respect to them is compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from stepladder.data import Batch
from stepladder.seam.pytree import tree_map

from .weighting import Weighting

ALLOWED = 1e-3  # of the whole's gradient, by which pieces may be off

Mean = Callable[[Any, Batch], Tensor]  # the loss of outputs and a batch


def output_gradients(mean: Mean, outputs: Any, part: Batch) -> list[Tensor]:
    """The loss's gradient with respect to each output that has these rows; zeros where none."""
    leaves: list[Tensor] = []

    def leaf(value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return value
        made = value.detach().clone().requires_grad_()
        if value.dim() and len(value) == part.num_rows:
            leaves.append(made)
        return made

    with torch.enable_grad():
        value = mean(tree_map(leaf, outputs), part)
        if not leaves or not value.requires_grad:
            return []
        found = torch.autograd.grad(value, leaves, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(leaves, found)]


def gradient_error(
    whole: Sequence[Tensor],
    pieces: Sequence[Sequence[Tensor]],
    parts: Sequence[Batch],
    weighting: Weighting,
) -> float:
    """How far the pieces' gradients are from the whole's, relative to it; 0 where it is unknown."""
    weights = [1.0] * len(parts) if weighting.sums else [sum(weighting.by_row(p)) for p in parts]
    total = 1.0 if weighting.sums else sum(weights)
    if not whole or not total > 0 or any(len(piece) != len(whole) for piece in pieces):
        return 0.0
    off = size = 0.0
    for index, expected in enumerate(whole):
        shares = [
            piece[index].double() * (weight / total) if weight else torch.zeros_like(piece[index])
            for piece, weight in zip(pieces, weights)
        ]
        off += float((torch.cat(shares) - expected.double()).square().sum())
        size += float(expected.double().square().sum())
    error = (off / size) ** 0.5 if size else 0.0
    return error if error == error else 0.0  # not a number: it says nothing
