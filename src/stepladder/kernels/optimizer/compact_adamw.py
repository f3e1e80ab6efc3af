"""Fused Adam(W) for bf16 weights whose masters and moments take 14, 10 or 7 bytes a parameter.

The bytes count weight, 16-bit gradient and state. See compact_state.py for the formats.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from stepladder.kernels.backend import TRITON_DTYPES, runs_triton

from . import compact_state as formats
from .adamw import Rule, by_kind, torch_adam

try:
    from stepladder.kernels.triton import triton_compact_adamw as programs
except ModuleNotFoundError:
    programs = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class CompactRow:
    """A parameter's weight, gradient and state, and what its random bits follow from."""

    weight: Tensor
    gradient: Tensor
    remainder: Tensor
    mean: Tensor
    square: Tensor
    mean_scale: Tensor | None = None  # of 8-bit moments, one a group
    square_scale: Tensor | None = None
    key: int = 0  # 32 bits of the run's seed and the parameter's name
    start: int = 0  # place of the first element in the whole parameter

    @property
    def bytes(self) -> int:
        """What weight, 16-bit gradient and state take for an element, scales aside."""
        return 4 + sum(t.element_size() for t in (self.remainder, self.mean, self.square))

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """As the programs' table lists them."""
        every = self.weight, self.remainder, self.gradient, self.mean, self.square
        scales = self.mean_scale, self.square_scale
        return (*every, *(scale for scale in scales if scale is not None))


@torch.no_grad()
def compact_adamw_(
    rows: Sequence[CompactRow], counted: Tensor, divisor: Tensor, bad: Tensor, rule: Rule
) -> None:
    """Update weights and their state with gradient / `divisor`.

    Args:
        counted: 1 − beta^step for both moments, and the step; one row a parameter.
        bad: 1 to skip the update, because a gradient is NaN or Inf.
    """

    def kind(index: int) -> tuple[str, ...]:
        row = rows[index]
        if not fits_triton(row):
            return ()
        return str(row.bytes), str(row.gradient.dtype), str(programs.multiple([row]))

    filled = [index for index, row in enumerate(rows) if row.weight.numel()]
    for places, fits in by_kind(filled, kind):
        if fits:
            mine = counted if places == list(range(len(rows))) else counted[places]
            programs.update_([rows[i] for i in places], mine, divisor, bad, rule)
        else:
            for i in places:
                _torch_update_(rows[i], counted[i], divisor, bad, rule)


def fits_triton(row: CompactRow) -> bool:
    """Whether a Triton program can read all tensors, with aligned vector loads."""
    return (
        runs_triton(row.weight)
        and row.gradient.dtype in TRITON_DTYPES
        and all(t.is_contiguous() and t.data_ptr() % programs.ALIGNED == 0 for t in row.tensors)
    )


def _torch_update_(
    row: CompactRow, counted: Tensor, divisor: Tensor, bad: Tensor, rule: Rule
) -> None:
    noise = None
    if row.mean.dtype != torch.float32:
        noise = formats.random_bits(row.key, counted[2], row.start, row.weight)
    master, mean, square = expand(row)
    grad = row.gradient.float() / divisor
    values = torch_adam(master, grad, mean, square, counted[:2], rule)
    keep = bad > 0
    for old, new in zip(pieces(row), shrink(*values, row.bytes, noise)):
        old.copy_(torch.where(keep, old, new))


def pieces(row: CompactRow) -> tuple[Tensor, ...]:
    """What an update writes, in the order of `shrink`."""
    return tuple(t for t in row.tensors if t is not row.gradient)


def expand(row: CompactRow) -> tuple[Tensor, Tensor, Tensor]:
    """The master and both moments in float32."""
    if row.mean_scale is not None and row.square_scale is not None:
        return (
            formats.join_master24(row.weight, row.remainder),
            formats.expand_mean(row.mean, row.mean_scale),
            formats.expand_square(row.square, row.square_scale),
        )
    master = formats.join_master(row.weight, row.remainder, row.square.signbit())
    return master, row.mean.float(), row.square.abs().float()


def shrink(
    master: Tensor, mean: Tensor, square: Tensor, size: int, noise: Tensor | None
) -> tuple[Tensor, ...]:
    """Weight, remainder and moments, and scales of 8-bit moments.

    Args:
        size: 14, 10 or 7 bytes.
        noise: random bits to round stochastically with; None rounds to nearest.
    """
    if size == 7:
        mean_code, mean_scale = formats.compand_mean(mean, noise)
        square_code, square_scale = formats.compand_square(square, noise)
        weight, remainder = formats.split_master24(master, noise)
        return weight, remainder, mean_code, square_code, mean_scale, square_scale
    weight, remainder, raised = formats.split_master(master)
    if size == 10:
        mean = narrowed(mean, None if noise is None else noise & 0xFFFF)
        square = narrowed(square, None if noise is None else noise >> 16)
    return weight, remainder, mean, torch.where(raised, -square, square)


def narrowed(value: Tensor, noise: Tensor | None) -> Tensor:
    return value.bfloat16() if noise is None else formats.round_to_bfloat16(value, noise)
