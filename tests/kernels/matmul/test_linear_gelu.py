"""A linear and GELU as one: the values and gradients of the two, on any device."""

import torch
from torch.nn import functional

from stepladder.kernels.matmul import linear_gelu


def drawn(dtype=torch.float32):
    torch.manual_seed(0)
    made = torch.randn(3, 5, 8), torch.randn(12, 8), torch.randn(12)
    return [t.to(dtype).requires_grad_() for t in made]


def plain(x, weight, bias):
    return functional.gelu(functional.linear(x, weight, bias), approximate="tanh")


def ours(*given):
    return torch.ops.stepladder.linear_gelu(*given)[0]


def test_values_and_gradients_are_those_of_the_two():
    ends = []
    for call in (ours, plain):
        given = drawn()
        out = call(*given)
        ends.append([out, *torch.autograd.grad(out.square().sum(), given)])
    for a, b in zip(*ends, strict=True):
        torch.testing.assert_close(a, b)


def test_a_matmul_applies_the_backward_of_gelu():
    torch.manual_seed(0)
    rows, matrix, aux = torch.randn(5, 6), torch.randn(6, 12), torch.randn(5, 12)
    inner = aux.clone().requires_grad_()
    functional.gelu(inner, approximate="tanh").backward(rows @ matrix)
    torch.testing.assert_close(linear_gelu.matmul_gelu_backward(rows, matrix, aux), inner.grad)
    torch.testing.assert_close(linear_gelu.gelu_backward(rows @ matrix, aux), inner.grad)


def test_the_operators_keep_torchs_rules():
    torch.library.opcheck(torch.ops.stepladder.linear_gelu.default, drawn())
    rows, matrix, aux = torch.randn(5, 6), torch.randn(6, 12), torch.randn(5, 12)
    torch.library.opcheck(torch.ops.stepladder.gelu_backward.default, (aux, aux * 2))
    torch.library.opcheck(torch.ops.stepladder.matmul_gelu_backward.default, (rows, matrix, aux))
