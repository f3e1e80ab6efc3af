"""A tensor beside what it should be: the same bits, or how far it is away."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from .sites import Site, same_bits

FAR = 1e-3  # share of a tensor's norm from which its rows may lie in another order
MOST_PAIRS = 2**30  # numbers looked at to find rows in another order


class Finding(NamedTuple):
    """What one rank found at one site."""

    site: Site
    micro: int | None  # None: of the whole step
    same_bits: bool
    distance: float  # norm of the difference
    norm: float  # of what it should be
    factor: float = 1.0  # what it should be times this is nearest to what it is
    unscaled: float = 0.0  # norm of the difference that is left then


def compare(site: Site, micro: int | None, found: Tensor, expected: Iterable[Tensor]) -> Finding:
    """The finding for the nearest of several tensors that it may be."""
    best: Finding | None = None
    for one in expected:
        if same_bits(found, one):
            return Finding(site, micro, True, 0.0, norm_of(one))
        away = distance(found, one)
        if best is None or not best.distance <= away:
            best = Finding(site, micro, False, away, norm_of(one), *best_factor(found, one))
    assert best is not None
    return best


def compare_unordered(finding: Finding, found: Tensor, whole: Tensor) -> Finding:
    """The finding where each row may be any of the whole tensor's: a router sorts tokens by expert,
    and other tokens come between them in another micro-batch."""
    one, other = (wide(each).reshape(len(each), -1) for each in (found, whole))
    if finding.distance <= FAR * finding.norm or one.shape[0] * other.numel() > MOST_PAIRS:
        return finding
    away = torch.cdist(one, other).amin(1).norm().item()
    return finding if finding.distance <= away else finding._replace(distance=away, factor=1.0)


def norm_of(tensor: Tensor) -> float:
    return wide(tensor).nan_to_num().norm().item()


def distance(found: Tensor, expected: Tensor) -> float:
    """The norm of the difference; equal elements differ by nothing, infinite ones too."""
    one, other = wide(found), wide(expected)
    apart = torch.where((one == other) | (one.isnan() & other.isnan()), 0.0, one - other)
    away = apart.norm().item()
    return away if math.isfinite(away) else math.inf


def best_factor(found: Tensor, expected: Tensor) -> tuple[float, float]:
    """The number that what was expected must be multiplied by, and what is then left over."""
    one, other = wide(found), wide(expected)
    square = (other.abs() ** 2).sum().item()
    if not square or not math.isfinite(square):
        return 1.0, math.inf
    factor = (one * other.conj()).sum().real.item() / square
    return factor, (one - factor * other).norm().item()


def wide(tensor: Tensor) -> Tensor:
    found = tensor.detach().cpu()
    found = found.to_dense() if found.is_sparse else found
    return found.to(torch.complex128 if found.is_complex() else torch.float64)
