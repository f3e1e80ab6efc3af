"""A product is torch's, whoever computes it; what a choice depends on."""

import pytest
import torch

from stepladder.rungs.kernels.products import multiply, pitch, shape_of


@pytest.mark.parametrize("add", [False, True])
def test_off_the_gpu_a_product_is_torchs_own(add):
    left, right = torch.randn(5, 7, dtype=torch.bfloat16), torch.randn(7, 3, dtype=torch.bfloat16)
    out = torch.ones(5, 3) if add else torch.empty(5, 3, dtype=torch.bfloat16)
    wanted = 1 + left.float() @ right.float() if add else left @ right
    assert shape_of(left, right, out, None, add) is None
    torch.testing.assert_close(multiply(left, right, out, add=add), wanted)


def test_a_bias_is_added():
    left, right, bias = torch.randn(5, 7), torch.randn(7, 3), torch.randn(3)
    torch.testing.assert_close(multiply(left, right, torch.empty(5, 3), bias), left @ right + bias)


def test_the_operator_is_what_the_compiler_is_told_of_it():
    left, right = torch.randn(5, 7), torch.randn(3, 7).t()
    torch.library.opcheck(torch.ops.stepladder.product.default, (left, right, None))
    torch.library.opcheck(torch.ops.stepladder.product.default, (left, right, torch.randn(3)))


@pytest.mark.parametrize(
    "matrix, lies",
    [
        (torch.empty(4, 6), (False, 6)),
        (torch.empty(6, 4).t(), (True, 4)),
        (torch.empty(4, 10)[:, :6], (False, 10)),
        (torch.empty(4, 12)[:, ::2], None),
    ],
)
def test_how_a_matrix_lies_in_memory(matrix, lies):
    assert pitch(matrix) == lies
