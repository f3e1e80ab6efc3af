"""A linear and GELU as one: the values and gradients of the two, on any device."""

import torch
from torch.nn import functional

from stepladder.kernels.matmul import linear_gelu as gelu


def drawn(dtype=torch.float32):
    torch.manual_seed(0)
    made = torch.randn(3, 5, 8), torch.randn(12, 8), torch.randn(12)
    return [t.to(dtype).requires_grad_() for t in made]


def plain(x, weight, bias):
    return functional.gelu(functional.linear(x, weight, bias), approximate="tanh")


def ours(*given):
    return torch.ops.stepladder.gelu_linear(*given)[0]


def test_values_and_gradients_are_those_of_the_two():
    ends = []
    for call in (ours, plain):
        given = drawn()
        out = call(*given)
        ends.append([out, *torch.autograd.grad(out.square().sum(), given)])
    for a, b in zip(*ends, strict=True):
        torch.testing.assert_close(a, b)


def test_the_gradient_through_a_product_is_the_products_slope():
    torch.manual_seed(0)
    rows, matrix, beside = torch.randn(5, 6), torch.randn(6, 12), torch.randn(5, 12)
    inner = beside.clone().requires_grad_()
    functional.gelu(inner, approximate="tanh").backward(rows @ matrix)
    torch.testing.assert_close(gelu.gradient(rows, matrix, beside), inner.grad)
    torch.testing.assert_close(gelu.slope(rows @ matrix, beside), inner.grad)


def test_the_operators_keep_torchs_rules():
    torch.library.opcheck(torch.ops.stepladder.gelu_linear.default, drawn())
    rows, matrix, beside = torch.randn(5, 6), torch.randn(6, 12), torch.randn(5, 12)
    torch.library.opcheck(torch.ops.stepladder.gelu_slope.default, (beside, beside * 2))
    torch.library.opcheck(torch.ops.stepladder.gelu_gradient.default, (rows, matrix, beside))
