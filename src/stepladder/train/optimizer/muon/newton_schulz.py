"""Newton-Schulz: matrices whose singular values are all about 1, by products alone.

Each iteration maps every singular value s to a·s + b·s³ + c·s⁵. The coefficients are those of
Keller Jordan's Muon, and torch's: steepest at zero, they end near 1 rather than at it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
EPS = 1e-7  # of the norm, for a matrix of zeros

Iterate = Callable[[Tensor, int], Tensor]


def newton_schulz(wide: Tensor, steps: int) -> Tensor:
    """The iterates of matrices that are no taller than wide."""
    a, b, c = COEFFICIENTS
    norms = torch.linalg.vector_norm(wide, dim=(-2, -1), keepdim=True, dtype=torch.float32)
    x = (wide / norms.clamp(min=EPS)).to(wide.dtype)
    for _ in range(steps):
        gram = x @ x.mT
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, polynomial, x, beta=a)
    return x


def orthogonalise(matrices: Tensor, steps: int, iterate: Iterate = newton_schulz) -> Tensor:
    """Orthogonalise a stack of matrices of one shape, in their own type.

    Args:
        iterate: Newton-Schulz, perhaps compiled.
    """
    if matrices.shape[-2] <= matrices.shape[-1]:
        return iterate(matrices, steps)
    # A product of the larger side would be as large. In the same order of memory as other
    # matrices, or code that is compiled for those would be compiled again.
    return iterate(matrices.mT.contiguous(), steps).mT


def divide_by_row_means(
    matrices: Tensor, means: Tensor, beta: float, eps: float, *, unit: bool
) -> tuple[Tensor, Tensor]:
    """NorMuon: divide each row by the root of its mean square so far; both, the latter updated.

    Args:
        means: of squares, one for each row.
        unit: give a result with a root mean square of 1, else with the norm it had before.
    """
    whole = matrices.float()
    means = means.lerp(whole.square().mean(-1, keepdim=True), 1 - beta)
    divided = whole / (means.sqrt() + eps)
    before, after = (
        torch.linalg.vector_norm(each, dim=(-2, -1), keepdim=True) for each in (whole, divided)
    )
    wanted = (matrices.shape[-2] * matrices.shape[-1]) ** 0.5 if unit else before
    return (divided * (wanted / after.clamp(min=EPS))).to(matrices.dtype), means
