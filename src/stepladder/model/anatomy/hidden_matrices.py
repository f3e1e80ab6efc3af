"""Which parameters are hidden matrices: what Muon orthogonalises, and AdamW does not update.

They are the weights inside the blocks that map activations to activations. Embeddings, the head,
norms, biases and tables that are added (of positions, tokens, biases) are none, nor is anything
before the first block or after the last. A module without a list of blocks is taken whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from torch import nn

from .anatomy import Anatomy

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TABLES = (nn.Embedding, nn.EmbeddingBag)
ADDED = ("bias", "embed", "position", "pos_", "token")  # in a parameter's own name: no weight


@dataclass(frozen=True, slots=True)
class MatrixShape:
    """A parameter as matrices that lie one behind the other, such as those of experts."""

    rows: int
    columns: int
    count: int = 1

    @classmethod
    def of(cls, shape: tuple[int, ...], *, convolution: bool = False) -> MatrixShape | None:
        """Two dimensions are a matrix, more a stack of them; a convolution's weight is a matrix
        with a row for each output channel. None: no matrix."""
        if convolution and len(shape) > 2:
            found = cls(shape[0], prod(shape[1:]))
        elif len(shape) > 1:
            found = cls(shape[-2], shape[-1], prod(shape[:-2]))
        else:
            return None
        return found if min(found.rows, found.columns) > 1 and found.count else None


def hidden_matrices(module: nn.Module, anatomy: Anatomy) -> dict[str, MatrixShape]:
    """Every trainable hidden matrix by its name."""
    ends = {f"{name}.weight" for name in (anatomy.head, anatomy.embedding) if name}
    inside = tuple(f"{block}." for block in anatomy.blocks)
    parts = dict(module.named_modules(remove_duplicate=False))
    found: dict[str, MatrixShape] = {}
    for name, parameter in module.named_parameters():
        owner, _, own = name.rpartition(".")
        added = isinstance(parts[owner], TABLES) or any(word in own for word in ADDED)
        outside = inside and not name.startswith(inside)
        if added or outside or name in ends or not parameter.requires_grad:
            continue
        shape = matrix_shape(parts[owner], parameter)
        if shape is not None:
            found[name] = shape
    return found


def matrix_shape(owner: nn.Module, parameter: Any) -> MatrixShape | None:
    """A parameter of this module as matrices; None where it is none, as a depthwise filter."""
    convolution = isinstance(owner, CONVOLUTIONS)
    if not parameter.is_floating_point() or (convolution and owner.groups > 1):  # type: ignore
        return None
    return MatrixShape.of(tuple(parameter.shape), convolution=convolution)
