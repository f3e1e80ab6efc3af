"""Triton program for one Adam update: every number is read once and written once.

The gradient and the parameter may be in 16 bits while the master copy and the two moments are in
float32; the rounded parameter is written beside its master, so no later pass has to cast it.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096
WARPS = 8


@triton.jit
def _update(
    parameter, master, gradient, mean, square, corrections, divisor, bad,
    lr, beta1, beta2, eps, decay, num_values, DECOUPLED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    if tl.load(bad) == 0.0:  # decided on the device: the host would have to wait to know
        places = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        inside = places < num_values
        grad = tl.load(gradient + places, mask=inside, other=0.0).to(tl.float32)
        grad = grad / tl.load(divisor)
        value = tl.load(master + places, mask=inside, other=0.0)
        m = tl.load(mean + places, mask=inside, other=0.0)
        v = tl.load(square + places, mask=inside, other=0.0)
        if DECOUPLED:
            value = value - lr * decay * value
        else:
            grad = grad + decay * value
        m = m + (1.0 - beta1) * (grad - m)
        v = v + (1.0 - beta2) * (grad * grad - v)
        first, second = tl.load(corrections), tl.load(corrections + 1)
        value = value - lr / first * m / (tl.sqrt(v) / tl.sqrt(second) + eps)
        tl.store(mean + places, m, mask=inside)
        tl.store(square + places, v, mask=inside)
        tl.store(master + places, value, mask=inside)
        tl.store(parameter + places, value, mask=inside)


def update_(
    parameter: Tensor,
    master: Tensor,
    gradient: Tensor,
    moments: tuple[Tensor, Tensor],
    corrections: Tensor,
    divisor: Tensor,
    bad: Tensor,
    rule: tuple[float, float, float, float, float, bool],
) -> None:
    """Move a contiguous parameter and its master; touch nothing where `bad` is 1."""
    *numbers, decoupled = rule
    num_values = parameter.numel()
    _update[(triton.cdiv(num_values, BLOCK),)](
        parameter, master, gradient, *moments, corrections, divisor, bad,
        *numbers, num_values, DECOUPLED=decoupled, BLOCK=BLOCK, num_warps=WARPS,
    )  # fmt: skip
    torch.autograd.graph.increment_version(parameter)
