"""Triton program for Adam's update of many parameters: every number is read and written once.

The gradient and the parameter may be 16-bit while master and moments are float32; the rounded
parameter is written together with its master, so no later pass casts it. A launch for each
parameter would keep the device waiting for the host: a small model has hundreds, each done in
microseconds. So one launch updates all, and each program looks up its parameter in a table.
"""

from collections.abc import Sequence
from functools import cache, lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096
WARPS = 8
ALIGNED = 16  # bytes of a vector load: every address must be a multiple
# Elements a thread reads at once, of 16-bit tensors too: else the compiler would carry every number
# through shared memory, from one arrangement to the other.
EACH = 4

TYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


@triton.jit
def _address(place, KIND: tl.constexpr, EACH: tl.constexpr):
    aligned: tl.constexpr = EACH * KIND.element_ty.primitive_bitwidth // 8
    return tl.multiple_of(tl.load(place).to(KIND), aligned)


@triton.jit
def adam(
    value, grad, m, v, first, second, lr, beta1, beta2, eps, decay, DECOUPLED: tl.constexpr
):  # fmt: skip
    """The new master and moments; `first` and `second` are 1 − beta^step of each moment."""
    if DECOUPLED:
        value = value - lr * decay * value
    else:
        grad = grad + decay * value
    m = m + (1.0 - beta1) * (grad - m)
    v = v + (1.0 - beta2) * (grad * grad - v)
    value = value - lr / first * m / (tl.sqrt(v) / tl.sqrt(second) + eps)
    return value, m, v


@triton.jit
def _update(
    table, sizes, owners, firsts, corrections, divisor, bad,
    lr, beta1, beta2, eps, decay, num_tensors,
    PARAMETER: tl.constexpr, GRADIENT: tl.constexpr,
    DECOUPLED: tl.constexpr, BLOCK: tl.constexpr, EACH: tl.constexpr,
    MULTIPLE: tl.constexpr,
):  # fmt: skip
    if tl.load(bad) == 0.0:  # decided on the device: the host would have to wait to know
        owner = tl.load(owners + tl.program_id(0))
        row = table + owner
        full: tl.constexpr = tl.pointer_type(tl.float32)
        parameter = _address(row, tl.pointer_type(PARAMETER), EACH)
        master = _address(row + num_tensors, full, EACH)
        gradient = _address(row + 2 * num_tensors, tl.pointer_type(GRADIENT), EACH)
        mean = _address(row + 3 * num_tensors, full, EACH)
        square = _address(row + 4 * num_tensors, full, EACH)
        first_place = tl.load(firsts + tl.program_id(0)).to(tl.int64) * BLOCK
        places = tl.multiple_of(first_place, BLOCK) + tl.arange(0, BLOCK)
        inside = places < tl.multiple_of(tl.load(sizes + owner), MULTIPLE)
        grad = tl.load(gradient + places, mask=inside, other=0.0).to(tl.float32)
        grad = grad / tl.load(divisor)
        value = tl.load(master + places, mask=inside, other=0.0)
        m = tl.load(mean + places, mask=inside, other=0.0)
        v = tl.load(square + places, mask=inside, other=0.0)
        first, second = tl.load(corrections + 2 * owner), tl.load(corrections + 2 * owner + 1)
        value, m, v = adam(
            value, grad, m, v, first, second, lr, beta1, beta2, eps, decay, DECOUPLED
        )  # fmt: skip
        tl.store(mean + places, m, mask=inside)
        tl.store(square + places, v, mask=inside)
        tl.store(master + places, value, mask=inside)
        tl.store(parameter + places, value, mask=inside)


def update_(
    rows: Sequence[tuple[Tensor, ...]],
    corrections: Tensor,
    divisor: Tensor,
    bad: Tensor,
    rule: tuple[float, float, float, float, float, bool],
) -> None:
    """Update contiguous parameters of one type, each given as (parameter, master, gradient, mean,
    square); change nothing where `bad` is 1."""
    *numbers, decoupled = rule
    parameter, _, gradient, *_ = rows[0]
    device = parameter.device
    sizes, owners, firsts = blocks_of(tuple(row[0].numel() for row in rows), device)
    table = addresses(tuple(row[kind].data_ptr() for kind in range(5) for row in rows), device)
    _update[(len(owners),)](
        table, sizes, owners, firsts, corrections, divisor, bad,
        *numbers, len(rows), PARAMETER=TYPES[parameter.dtype], GRADIENT=TYPES[gradient.dtype],
        DECOUPLED=decoupled, BLOCK=BLOCK, EACH=EACH, MULTIPLE=multiple(rows),
        num_warps=WARPS,
    )  # fmt: skip
    for row in rows:
        torch.autograd.graph.increment_version(row[0])


@lru_cache(maxsize=64)
def addresses(places: tuple[int, ...], device: torch.device) -> Tensor:
    """A table of addresses on the device: most steps find every tensor where the last one did."""
    return on_device(torch.tensor(places), device)


def on_device(table: Tensor, device: torch.device) -> Tensor:
    return table.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else table


def multiple(rows: Sequence[tuple[Tensor, ...]]) -> int:
    """A divisor of all sizes: vector loads need to know that none crosses a tensor's end."""
    return ALIGNED if all(row[0].numel() % ALIGNED == 0 for row in rows) else 1


@cache
def blocks_of(
    sizes: tuple[int, ...], device: torch.device, block: int = BLOCK
) -> tuple[Tensor, Tensor, Tensor]:
    """The size of each tensor; and for each program, its tensor and its block of that tensor."""
    counts = [triton.cdiv(size, block) for size in sizes]
    owners = [owner for owner, count in enumerate(counts) for _ in range(count)]
    firsts = [first for count in counts for first in range(count)]
    return (
        torch.tensor(sizes, dtype=torch.int64, device=device),
        torch.tensor(owners, dtype=torch.int32, device=device),
        torch.tensor(firsts, dtype=torch.int32, device=device),
    )
