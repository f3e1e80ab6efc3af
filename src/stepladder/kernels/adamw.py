"""Adam's update of parameters in 16 bits whose master copies and moments are in float32.

torch's fused optimizers want one type throughout: beside 16-bit parameters they would keep 16-bit
moments, or cast each gradient up and each parameter down in passes of their own.
"""

from collections.abc import Sequence
from itertools import groupby

import torch
from torch import Tensor

from .backend import TILED, runs_triton

try:
    from .triton import triton_adamw as tiles
except ModuleNotFoundError:
    tiles = None  # type: ignore[assignment]

Rule = tuple[float, float, float, float, float, bool]  # lr, betas, eps, decay, decay is decoupled
Row = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]  # parameter, master, gradient, both moments


@torch.no_grad()
def adamw_(
    rows: Sequence[Row], corrections: Tensor, divisor: Tensor, bad: Tensor, rule: Rule
) -> None:
    """Move each master and its moments by gradient / `divisor`, and round it into its parameter.

    Args:
        corrections: 1 − beta to the power of steps taken, for both moments, a row a parameter.
        bad: 1 where nothing at all shall change.
    """

    def kind(index: int) -> tuple[str, ...]:
        row = rows[index]
        if not is_tiled(row):
            return ()
        # Those whose length is odd go by themselves: they would slow the others down.
        return str(row[0].dtype), str(row[2].dtype), str(tiles.multiple([row]))

    order = sorted((i for i, row in enumerate(rows) if row[0].numel()), key=kind)
    for types, members in groupby(order, kind):
        places = list(members)
        if types:
            mine = corrections if places == list(range(len(rows))) else corrections[places]
            tiles.update_([rows[i] for i in places], mine, divisor, bad, rule)
        else:
            for i in places:
                _torch_update_(rows[i], corrections[i], divisor, bad, rule)


def is_tiled(row: Row) -> bool:
    """Whether a Triton program can go through all five side by side, and fast."""
    parameter, gradient = row[0], row[2]
    return (
        runs_triton(parameter)
        and gradient.dtype in TILED
        and all(t.is_contiguous() and t.data_ptr() % tiles.ALIGNED == 0 for t in row)
    )


def _torch_update_(row: Row, corrections: Tensor, divisor: Tensor, bad: Tensor, rule: Rule) -> None:
    parameter, master, gradient, mean, square = row
    lr, beta1, beta2, eps, decay, decoupled = rule
    grad = gradient.float() / divisor
    value = master - lr * decay * master if decoupled else master
    grad = grad if decoupled else grad + decay * master
    new_mean = mean.lerp(grad, 1 - beta1)
    new_square = square.lerp(grad * grad, 1 - beta2)
    first, second = corrections.unbind()
    value = value - lr / first * new_mean / (new_square.sqrt() / second.sqrt() + eps)
    keep = bad > 0
    for old, new in ((mean, new_mean), (square, new_square), (master, value)):
        old.copy_(torch.where(keep, old, new))
    parameter.copy_(torch.where(keep, parameter, master.to(parameter.dtype)))
