"""Linear and tanh GELU in one matmul, and GELU's backward as the epilogue of a matmul.

Compiled separately, GELU reads the matmul's result and writes its own, and its backward reads both
again: 3.7 of 58 ms of a GPT's step on an H200, all of it waiting for memory. As cuBLASLt epilogues,
the forward matmul also writes GELU's input (`aux`), and the matmul that computes the gradient of
GELU's output multiplies it by GELU's derivative. GELU is then applied to the float32 sum rather
than to the sum rounded to 16 bits, so the last bit may differ from torch's.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .matmul import Operands, close, multiply, run_tuned

aten = torch.ops.aten


def linear_gelu(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Return gelu(x @ weight.T + bias), and GELU's input."""
    rows = x.reshape(-1, x.shape[-1])
    out, aux = (x.new_empty(len(rows), len(weight)) for _ in range(2))
    run_tuned(Operands(rows, weight.t(), out, bias, aux=aux), torch_linear_gelu, "gelu", close)
    shape = (*x.shape[:-1], len(weight))
    return out.view(shape), aux.view(shape)


def gelu_backward(grad: Tensor, aux: Tensor) -> Tensor:
    """`grad` times GELU's derivative at `aux`."""
    return aten.gelu_backward(grad, aux, approximate="tanh")


def matmul_gelu_backward(rows: Tensor, matrix: Tensor, aux: Tensor) -> Tensor:
    """gelu_backward(rows @ matrix, aux) in one matmul."""
    out = torch.empty(aux.shape, dtype=aux.dtype, device=aux.device)
    run_tuned(
        Operands(rows, matrix, out, aux=aux), torch_matmul_gelu_backward, "gelu_backward", close
    )
    return out


def torch_linear_gelu(given: Operands) -> None:
    assert given.aux is not None
    multiply(given.left, given.right, given.aux, given.bias)
    aten.gelu.out(given.aux, approximate="tanh", out=given.out)


def torch_matmul_gelu_backward(given: Operands) -> None:
    out = multiply(given.left, given.right, given.out)
    aten.gelu_backward.grad_input(out, given.aux, approximate="tanh", grad_input=out)


def _linear_fake(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    out = x.new_empty(*x.shape[:-1], len(weight))
    return out, torch.empty_like(out)


def _save(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs[:2], output[1])


def _gradients(ctx: Any, dout: Tensor | None, _: Any) -> tuple[Tensor | None, ...]:
    if dout is None:
        return (None,) * 3
    x, weight, aux = ctx.saved_tensors
    inner = torch.ops.stepladder.gelu_backward.default(dout, aux)
    rows, drows = x.reshape(-1, x.shape[-1]), inner.reshape(-1, inner.shape[-1])
    return (drows @ weight).view(x.shape), drows.t() @ rows, drows.sum(0)


torch.library.define(
    "stepladder::linear_gelu", "(Tensor x, Tensor weight, Tensor bias) -> (Tensor, Tensor)"
)
torch.library.impl("stepladder::linear_gelu", ("cpu", "cuda"), linear_gelu)
torch.library.register_fake("stepladder::linear_gelu", _linear_fake)
torch.library.register_autograd("stepladder::linear_gelu", _gradients, setup_context=_save)
torch.library.define("stepladder::gelu_backward", "(Tensor grad, Tensor aux) -> Tensor")
torch.library.impl("stepladder::gelu_backward", ("cpu", "cuda"), gelu_backward)
torch.library.register_fake("stepladder::gelu_backward", gelu_backward)
torch.library.define(
    "stepladder::matmul_gelu_backward", "(Tensor rows, Tensor matrix, Tensor aux) -> Tensor"
)
torch.library.impl("stepladder::matmul_gelu_backward", ("cpu", "cuda"), matmul_gelu_backward)


@torch.library.register_fake("stepladder::matmul_gelu_backward")
def _gradient_fake(rows: Tensor, matrix: Tensor, aux: Tensor) -> Tensor:
    return torch.empty(aux.shape, dtype=aux.dtype, device=aux.device)
