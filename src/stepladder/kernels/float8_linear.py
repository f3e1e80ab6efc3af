"""A linear whose three products are of 8-bit numbers, each tensor with one scale found as it is
used.

What is multiplied forward keeps more digits (e4m3), a gradient more range (e5m2). Each tensor is
read twice, for its largest value and for the cast, and the cast writes both layouts that products
want; so nothing is cast again in the backward pass, and what waits for it takes 8 bits. The largest
value is plain torch, for the compiler to find while it makes the tensor; the cast is opaque to it,
and linears that read the same input share one cast, for the compiler sees that they are the same.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from stepladder.seam.operators import scaled_mm

from .backend import runs_triton

try:
    from .triton import triton_float8 as tiles
except ModuleNotFoundError:
    tiles = None  # type: ignore[assignment]

VALUES, GRADIENTS = torch.float8_e4m3fn, torch.float8_e5m2
TILE = 16  # what fp8 matrix units take on every side
TINY = 1e-12  # of a tensor of nothing but zeros, the largest value that is divided by


class Eight(NamedTuple):
    """A contiguous matrix in 8 bits."""

    values: Tensor
    unit: Tensor  # what 1 stands for


def float8_linear(inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return inputs @ weight.T + bias, all products of it and of its gradients in 8 bits."""
    kind = inputs.device.type
    if torch.is_autocast_enabled(kind):
        inputs = inputs.to(torch.get_autocast_dtype(kind))
    rows = inputs.reshape(-1, inputs.shape[-1])
    outputs = _Float8Linear.apply(whole_tiles(rows), weight)[: len(rows)]
    outputs = outputs.view(*inputs.shape[:-1], len(weight))
    return outputs if bias is None else outputs + bias.to(outputs.dtype)


def whole_tiles(rows: Tensor) -> Tensor:
    """Rows of zeros added, up to the next whole tile: rows are summed over for a weight."""
    missing = -len(rows) % TILE
    return functional.pad(rows, (0, 0, 0, missing)) if missing else rows


def cast(matrix: Tensor, kind: torch.dtype, largest: Tensor | None = None) -> tuple[Eight, Eight]:
    """A matrix in 8 bits, as it is and turned; its largest value becomes the largest there is."""
    matrix = matrix.bfloat16()  # as autocast would; nothing is lost that 8 bits could hold
    if largest is None:
        largest = matrix.abs().amax()
    op = torch.ops.stepladder.float8_cast.default
    plain, turned, unit = op(matrix, largest, kind == GRADIENTS)
    return Eight(plain, unit), Eight(turned, unit)


def product(left: Eight, right: Eight, dtype: torch.dtype, *, quick: bool = False) -> Tensor:
    """left @ right.T.

    Args:
        quick: sums are kept in fewer bits, which a forward pass bears and a gradient less.
    """
    (a, a_unit), (b, b_unit) = left, right
    if not a.is_cuda:
        return ((a.float() * a_unit) @ (b.float() * b_unit).T).to(dtype)
    return scaled_mm(
        a, b.t(), scale_a=a_unit, scale_b=b_unit, out_dtype=dtype, use_fast_accum=quick
    )


class _Float8Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor) -> Tensor:
        (left, turned_left), (right, turned_right) = cast(rows, VALUES), cast(weight, VALUES)
        ctx.save_for_backward(*turned_left, *turned_right)
        ctx.weight_dtype = weight.dtype
        return product(left, right, rows.dtype, quick=True)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        saved = ctx.saved_tensors
        rows, weight = Eight(*saved[:2]), Eight(*saved[2:])  # both turned
        plain, turned = cast(gradient, GRADIENTS)
        for_rows, for_weight = ctx.needs_input_grad
        drows = product(plain, weight, gradient.dtype) if for_rows else None
        return drows, product(turned, rows, ctx.weight_dtype) if for_weight else None


def _cast(values: Tensor, largest: Tensor, gradient: bool) -> tuple[Tensor, ...]:
    kind = GRADIENTS if gradient else VALUES
    if runs_triton(values) and values.numel():
        return tiles.cast(values.contiguous(), largest, kind, TINY)
    top, limit = largest.float().clamp(min=TINY), torch.finfo(kind).max
    plain = (values.float() * (limit / top)).to(kind)
    return plain, plain.t().contiguous(), top / limit


torch.library.define(
    "stepladder::float8_cast",
    "(Tensor values, Tensor largest, bool gradient) -> (Tensor, Tensor, Tensor)",
)
torch.library.impl("stepladder::float8_cast", ("cpu", "cuda"), _cast)


@torch.library.register_fake("stepladder::float8_cast")
def _fake_cast(values: Tensor, largest: Tensor, gradient: bool) -> tuple[Tensor, ...]:
    height, width = values.shape
    kind = GRADIENTS if gradient else VALUES
    plain = values.new_empty((height, width), dtype=kind)
    turned = values.new_empty((width, height), dtype=kind)
    return plain, turned, values.new_empty((), dtype=torch.float32)
