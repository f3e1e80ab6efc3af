"""A matmul is torch's, whoever computes it; what a choice depends on."""

import pytest
import torch

from stepladder.kernels.matmul.matmul import (
    Operands,
    close,
    leading_stride,
    multiply,
    multiply_and_add,
    shape_of,
)


@pytest.mark.parametrize("add", [False, True])
def test_off_the_gpu_a_matmul_is_torchs_own(add):
    left, right = torch.randn(5, 7, dtype=torch.bfloat16), torch.randn(7, 3, dtype=torch.bfloat16)
    out = torch.ones(5, 3) if add else torch.empty(5, 3, dtype=torch.bfloat16)
    wanted = 1 + left.float() @ right.float() if add else left @ right
    assert shape_of(Operands(left, right, out)) is None
    torch.testing.assert_close(multiply(left, right, out, add=add), wanted)


def test_more_bits_come_out_where_there_is_room_for_them():
    left, right = torch.randn(5, 70).bfloat16(), torch.randn(70, 3).bfloat16()
    wanted = left.float() @ right.float()
    torch.testing.assert_close(multiply(left, right, torch.full((5, 3), torch.nan)), wanted)


@pytest.mark.parametrize("bias", [torch.randn(3), None])
def test_another_matrix_is_added_and_stays_as_it_is(bias):
    left, right, added = torch.randn(5, 7), torch.randn(7, 3), torch.randn(5, 3)
    before = added.clone()
    wanted = left @ right + added + (0 if bias is None else bias)
    torch.testing.assert_close(multiply_and_add(left, right, bias, added), wanted)
    assert torch.equal(added, before)


def test_a_summand_of_another_type_is_refused():
    left, right = torch.ones(2, 2, dtype=torch.bfloat16), torch.ones(2, 2, dtype=torch.bfloat16)
    with pytest.raises(AssertionError, match="the addend must have"):
        multiply_and_add(left, right, None, torch.ones(2, 2))


def test_results_that_differ_by_roundings_are_alike_and_others_are_not():
    wanted = torch.randn(100, 64, generator=torch.Generator().manual_seed(0))
    rounded = wanted.bfloat16().float()
    assert close(rounded, wanted)
    wrong = rounded.clone()
    wrong[40, 3] += 0.1
    assert not close(wrong, wanted)
    assert not close(rounded * 1.05, wanted)


def test_a_bias_is_added():
    left, right, bias = torch.randn(5, 7), torch.randn(7, 3), torch.randn(3)
    torch.testing.assert_close(multiply(left, right, torch.empty(5, 3), bias), left @ right + bias)


def test_a_sum_that_nearly_cancels_may_show_the_products_rounding():
    """As the first step of a real model did: a few of its 67 million sums."""
    result = torch.randn(100, 64, generator=torch.Generator().manual_seed(0))
    added = result.flip(0).bfloat16()
    result[:4] *= 40
    added[:4] = -result[:4].bfloat16()
    twice = result.bfloat16() + added
    once = (result + added.float()).bfloat16()
    assert not close(once, twice)
    assert close(once, twice, added=added)
    assert not close(added, twice, added=added)  # without the result


def test_the_operator_is_what_the_compiler_is_told_of_it():
    left, right = torch.randn(5, 7), torch.randn(3, 7).t()
    torch.library.opcheck(torch.ops.stepladder.matmul.default, (left, right, None))
    torch.library.opcheck(torch.ops.stepladder.matmul.default, (left, right, torch.randn(3)))
    given = left, right, torch.randn(3), torch.randn(5, 3)
    torch.library.opcheck(torch.ops.stepladder.matmul_add.default, given)


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
    assert leading_stride(matrix) == lies
