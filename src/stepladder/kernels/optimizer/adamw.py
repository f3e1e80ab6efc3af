"""Fused Adam(W) for 16-bit parameters with fp32 masters and moments.

torch's fused optimizers need one type throughout: with 16-bit parameters their moments would be
16-bit too, or every gradient and parameter would be cast in passes of its own.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

import torch
from torch import Tensor

from stepladder.kernels.backend import TRITON_DTYPES, runs_triton

try:
    from stepladder.kernels.triton import triton_adamw as programs
except ModuleNotFoundError:
    programs = None  # type: ignore[assignment]

Rule = tuple[
    float, float, float, float, float, bool
]  # lr, both betas, eps, weight decay, whether decoupled (AdamW)
Row = tuple[
    Tensor, Tensor, Tensor, Tensor, Tensor
]  # parameter, master, gradient, exp_avg, exp_avg_sq


@torch.no_grad()
def adamw_(
    rows: Sequence[Row], corrections: Tensor, divisor: Tensor, bad: Tensor, rule: Rule
) -> None:
    """Update masters and moments with gradient / `divisor`, and round masters into parameters.

    Args:
        corrections: 1 − beta^step for both moments, one row a parameter.
        bad: 1 to skip the update, because a gradient is NaN or Inf.
    """

    def kind(index: int) -> tuple[str, ...]:
        row = rows[index]
        if not fits_triton(row):
            return ()
        # Sizes that are not aligned go together: they would slow the others down.
        return str(row[0].dtype), str(row[2].dtype), str(programs.multiple([row]))

    filled = [index for index, row in enumerate(rows) if row[0].numel()]
    for places, fits in by_kind(filled, kind):
        if fits:
            mine = corrections if places == list(range(len(rows))) else corrections[places]
            programs.update_([rows[i] for i in places], mine, divisor, bad, rule)
        else:
            for i in places:
                _torch_update_(rows[i], corrections[i], divisor, bad, rule)


def by_kind(
    places: Sequence[int], kind: Callable[[int], tuple[str, ...]]
) -> Iterator[tuple[list[int], bool]]:
    """Rows of one kind, which one launch updates, and whether a program takes them."""
    for types, members in groupby(sorted(places, key=kind), kind):
        yield list(members), bool(types)


def fits_triton(row: Row) -> bool:
    """Whether a Triton program can read all five tensors, with aligned vector loads."""
    parameter, gradient = row[0], row[2]
    return (
        runs_triton(parameter)
        and gradient.dtype in TRITON_DTYPES
        and all(t.is_contiguous() and t.data_ptr() % programs.ALIGNED == 0 for t in row)
    )


def _torch_update_(row: Row, corrections: Tensor, divisor: Tensor, bad: Tensor, rule: Rule) -> None:
    parameter, master, gradient, mean, square = row
    grad = gradient.float() / divisor
    value, *moments = torch_adam(master, grad, mean, square, corrections, rule)
    keep = bad > 0
    for old, new in zip((mean, square, master), (*moments, value)):
        old.copy_(torch.where(keep, old, new))
    parameter.copy_(torch.where(keep, parameter, master.to(parameter.dtype)))


def torch_adam(
    master: Tensor, grad: Tensor, mean: Tensor, square: Tensor, corrections: Tensor, rule: Rule
) -> tuple[Tensor, Tensor, Tensor]:
    """The new master and moments."""
    lr, beta1, beta2, eps, decay, decoupled = rule
    value = master - lr * decay * master if decoupled else master
    grad = grad if decoupled else grad + decay * master
    mean = mean.lerp(grad, 1 - beta1)
    square = square.lerp(grad * grad, 1 - beta2)
    first, second = corrections.unbind()
    value = value - lr / first * mean / (square.sqrt() / second.sqrt() + eps)
    return value, mean, square
