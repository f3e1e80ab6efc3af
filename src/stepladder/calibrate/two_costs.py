"""Least-squares fit of two costs."""

from __future__ import annotations

from collections.abc import Sequence

SINGULAR = 1e-9  # below which shapes do not tell one cost from the other


def fit_two_costs(rows: Sequence[tuple[float, float, float]]) -> tuple[float, float]:
    """The costs x and y for which a·x + b·y comes closest to the seconds of every row (a, b, s).

    Least squares of the shares, so that each row weighs the same whatever its size. A cost below
    zero means that the rows do not show it, so it is left out.
    """
    shares = [(a / s, b / s) for a, b, s in rows]
    aa, bb = sum(a * a for a, _ in shares), sum(b * b for _, b in shares)
    ab = sum(a * b for a, b in shares)
    a1, b1 = sum(a for a, _ in shares), sum(b for _, b in shares)
    determinant = aa * bb - ab * ab
    if determinant > SINGULAR * aa * bb:
        x, y = (a1 * bb - b1 * ab) / determinant, (b1 * aa - a1 * ab) / determinant
        if x > 0 and y > 0:
            return x, y
    return a1 / aa, 0.0
