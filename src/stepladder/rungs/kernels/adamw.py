"""One Adam update of a parameter in 16 bits whose master copy and moments are in float32.

torch's fused optimizers want one type throughout: beside 16-bit parameters they would keep 16-bit
moments, or cast each gradient up and each parameter down in passes of their own.
"""

import torch
from torch import Tensor

from .backend import runs_triton

try:
    from . import triton_adamw as tiles
except ModuleNotFoundError:
    tiles = None  # type: ignore[assignment]

Rule = tuple[float, float, float, float, float, bool]  # lr, betas, eps, decay, decay is decoupled


@torch.no_grad()
def adamw_(
    parameter: Tensor,
    master: Tensor,
    gradient: Tensor,
    moments: tuple[Tensor, Tensor],
    corrections: Tensor,
    divisor: Tensor,
    bad: Tensor,
    rule: Rule,
) -> None:
    """Move `master` and its moments by `gradient` / `divisor`, and round it into `parameter`.

    Args:
        corrections: 1 − beta to the power of steps taken, for both moments.
        bad: 1 where nothing at all shall change.
    """
    tensors = (parameter, master, gradient, *moments)
    rows = all(t.is_contiguous() for t in tensors)
    if rows and runs_triton(parameter) and parameter.numel():
        tiles.update_(parameter, master, gradient, moments, corrections, divisor, bad, rule)
    else:
        _torch_update_(parameter, master, gradient, moments, corrections, divisor, bad, rule)


def _torch_update_(
    parameter: Tensor,
    master: Tensor,
    gradient: Tensor,
    moments: tuple[Tensor, Tensor],
    corrections: Tensor,
    divisor: Tensor,
    bad: Tensor,
    rule: Rule,
) -> None:
    lr, beta1, beta2, eps, decay, decoupled = rule
    mean, square = moments
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
