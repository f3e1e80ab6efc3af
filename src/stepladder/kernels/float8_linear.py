"""A linear whose three matmuls are in fp8, each tensor scaled by its largest value at the time.

Values are cast to e4m3, which has more mantissa, and gradients to e5m2, which has more range. Each
tensor is read twice, for its largest value and for the cast; the cast writes both layouts that
matmuls need, so nothing is cast again in backward, and what is saved for it takes 8 bits. The
largest value is plain torch, which the compiler fuses into what computes the tensor; the cast is
opaque to the compiler, and linears with the same input share one cast, since the compiler sees
that they are equal.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from stepladder.seam.operators import scaled_mm

from .backend import runs_triton

try:
    from .triton import triton_float8 as programs
except ModuleNotFoundError:
    programs = None  # type: ignore[assignment]

VALUES, GRADIENTS = torch.float8_e4m3fn, torch.float8_e5m2
TILE = 16  # fp8 matrix units take multiples of this on every side
TINY = 1e-12  # divided by in place of the largest value of a tensor of zeros


class Float8Matrix(NamedTuple):
    """A contiguous fp8 matrix and its scale."""

    values: Tensor
    scale: Tensor  # values × scale is the original


def float8_linear(inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return inputs @ weight.T + bias, with this and the gradients' matmuls in fp8."""
    device_type = inputs.device.type
    if torch.is_autocast_enabled(device_type):
        inputs = inputs.to(torch.get_autocast_dtype(device_type))
    rows = inputs.reshape(-1, inputs.shape[-1])
    outputs = _Float8Linear.apply(pad_to_tiles(rows), weight)[: len(rows)]
    outputs = outputs.view(*inputs.shape[:-1], len(weight))
    return outputs if bias is None else outputs + bias.to(outputs.dtype)


def pad_to_tiles(rows: Tensor) -> Tensor:
    """Pad with rows of zeros to a multiple of TILE: a weight's gradient sums over rows."""
    missing = -len(rows) % TILE
    return functional.pad(rows, (0, 0, 0, missing)) if missing else rows


def cast(
    matrix: Tensor, dtype: torch.dtype, largest: Tensor | None = None
) -> tuple[Float8Matrix, Float8Matrix]:
    """A matrix in fp8 and its transpose, scaled so that its largest value is fp8's largest."""
    matrix = matrix.bfloat16()  # as autocast would; fp8 has fewer bits still
    if largest is None:
        largest = matrix.abs().amax()
    op = torch.ops.stepladder.float8_cast.default
    plain, transposed, scale = op(matrix, largest, dtype == GRADIENTS)
    return Float8Matrix(plain, scale), Float8Matrix(transposed, scale)


def float8_matmul(
    left: Float8Matrix, right: Float8Matrix, dtype: torch.dtype, *, fast: bool = False
) -> Tensor:
    """left @ right.T.

    Args:
        fast: accumulate in fewer bits, which a forward pass tolerates and a gradient less.
    """
    (a, a_scale), (b, b_scale) = left, right
    if not a.is_cuda:
        return ((a.float() * a_scale) @ (b.float() * b_scale).T).to(dtype)
    return scaled_mm(
        a, b.t(), scale_a=a_scale, scale_b=b_scale, out_dtype=dtype, use_fast_accum=fast
    )


class _Float8Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor) -> Tensor:
        left, transposed_left = cast(rows, VALUES)
        right, transposed_right = cast(weight, VALUES)
        ctx.save_for_backward(*transposed_left, *transposed_right)
        ctx.weight_dtype = weight.dtype
        return float8_matmul(left, right, rows.dtype, fast=True)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        saved = ctx.saved_tensors
        rows, weight = Float8Matrix(*saved[:2]), Float8Matrix(*saved[2:])  # both transposed
        plain, transposed = cast(gradient, GRADIENTS)
        for_rows, for_weight = ctx.needs_input_grad
        drows = float8_matmul(plain, weight, gradient.dtype) if for_rows else None
        return drows, float8_matmul(transposed, rows, ctx.weight_dtype) if for_weight else None


def _cast(values: Tensor, largest: Tensor, gradient: bool) -> tuple[Tensor, ...]:
    dtype = GRADIENTS if gradient else VALUES
    if runs_triton(values) and values.numel():
        return programs.cast(values.contiguous(), largest, dtype, TINY)
    top, limit = largest.float().clamp(min=TINY), torch.finfo(dtype).max
    plain = (values.float() * (limit / top)).to(dtype)
    return plain, plain.t().contiguous(), top / limit


torch.library.define(
    "stepladder::float8_cast",
    "(Tensor values, Tensor largest, bool gradient) -> (Tensor, Tensor, Tensor)",
)
torch.library.impl("stepladder::float8_cast", ("cpu", "cuda"), _cast)


@torch.library.register_fake("stepladder::float8_cast")
def _fake_cast(values: Tensor, largest: Tensor, gradient: bool) -> tuple[Tensor, ...]:
    height, width = values.shape
    dtype = GRADIENTS if gradient else VALUES
    plain = values.new_empty((height, width), dtype=dtype)
    transposed = values.new_empty((width, height), dtype=dtype)
    return plain, transposed, values.new_empty((), dtype=torch.float32)
