"""A linear and GELU by tanh as one, and GELU's gradient with the product that brings it.

Compiled as it stands, GELU reads the product's result and writes its own, and its gradient reads
both again: of a GPT's step on an H200 3.7 of 58 ms, all of it waiting for memory. cuBLASLt does
either to a result before it is written: forward the product leaves GELU's input beside its output,
and the product that brings the gradient back multiplies it by GELU's slope there. GELU is then of
the float32 sum, not of the sum rounded to 16 bits, so the last bit may differ from torch's.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .matmul import Operands, alike, multiply, work

aten = torch.ops.aten


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Return gelu(x @ weight.T + bias), and what GELU was taken of."""
    rows = x.reshape(-1, x.shape[-1])
    out, beside = (x.new_empty(len(rows), len(weight)) for _ in range(2))
    work(Operands(rows, weight.t(), out, bias, beside=beside), plain_linear, "gelu", alike)
    shape = (*x.shape[:-1], len(weight))
    return out.view(shape), beside.view(shape)


def slope(grad: Tensor, beside: Tensor) -> Tensor:
    """GELU's gradient at `beside` times `grad`."""
    return aten.gelu_backward(grad, beside, approximate="tanh")


def gradient(rows: Tensor, matrix: Tensor, beside: Tensor) -> Tensor:
    """The slope of rows @ matrix, as one."""
    out = torch.empty(beside.shape, dtype=beside.dtype, device=beside.device)
    work(Operands(rows, matrix, out, beside=beside), plain_gradient, "gelu_gradient", alike)
    return out


def plain_linear(given: Operands) -> None:
    assert given.beside is not None
    multiply(given.left, given.right, given.beside, given.bias)
    aten.gelu.out(given.beside, approximate="tanh", out=given.out)


def plain_gradient(given: Operands) -> None:
    out = multiply(given.left, given.right, given.out)
    aten.gelu_backward.grad_input(out, given.beside, approximate="tanh", grad_input=out)


def _linear_fake(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    out = x.new_empty(*x.shape[:-1], len(weight))
    return out, torch.empty_like(out)


def _keep(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs[:2], output[1])


def _gradients(ctx: Any, dout: Tensor | None, _: Any) -> tuple[Tensor | None, ...]:
    if dout is None:
        return (None,) * 3
    x, weight, beside = ctx.saved_tensors
    inner = torch.ops.stepladder.gelu_slope.default(dout, beside)
    rows, drows = x.reshape(-1, x.shape[-1]), inner.reshape(-1, inner.shape[-1])
    return (drows @ weight).view(x.shape), drows.t() @ rows, drows.sum(0)


torch.library.define(
    "stepladder::gelu_linear", "(Tensor x, Tensor weight, Tensor bias) -> (Tensor, Tensor)"
)
torch.library.impl("stepladder::gelu_linear", ("cpu", "cuda"), linear)
torch.library.register_fake("stepladder::gelu_linear", _linear_fake)
torch.library.register_autograd("stepladder::gelu_linear", _gradients, setup_context=_keep)
torch.library.define("stepladder::gelu_slope", "(Tensor grad, Tensor beside) -> Tensor")
torch.library.impl("stepladder::gelu_slope", ("cpu", "cuda"), slope)
torch.library.register_fake("stepladder::gelu_slope", slope)
torch.library.define(
    "stepladder::gelu_gradient", "(Tensor rows, Tensor matrix, Tensor beside) -> Tensor"
)
torch.library.impl("stepladder::gelu_gradient", ("cpu", "cuda"), gradient)


@torch.library.register_fake("stepladder::gelu_gradient")
def _gradient_fake(rows: Tensor, matrix: Tensor, beside: Tensor) -> Tensor:
    return torch.empty(beside.shape, dtype=beside.dtype, device=beside.device)
