"""RMSNorm against float64. Run plainly this tests the torch arithmetic; `test_kernels_interpreted`
runs it again with TRITON_INTERPRET=1, and then it tests the Triton programs."""

import os

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from stepladder.errors import ModelError
from stepladder.kernels import rms_norm
from stepladder.kernels.backend import INTERPRETED, runs_triton

torch.set_num_threads(1)
# Relative error norms. In bf16 Triton's interpreter cuts where a GPU rounds, twice the error.
BOUNDS = {torch.float32: 1e-6, torch.float16: 6e-4, torch.bfloat16: 8e-3}


@pytest.fixture(autouse=True)
def poisoned_memory():
    """Fill fresh tensors with NaN: an element a kernel forgets to write cannot pass."""
    torch.use_deterministic_algorithms(True)
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)


def error(got, wanted):
    assert got.shape == wanted.shape
    return ((got.double() - wanted).norm() / wanted.norm().clamp(min=1e-300)).item()


def both_ways(shape, dtype, seed=0, weight_dtype=None):
    """Output and gradients (dx, dweight) of ours, then of torch in float64 on the same numbers."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator).mul(3).to(dtype)
    weight = torch.randn(shape[-1], generator=generator).to(weight_dtype or dtype)
    dy = torch.randn(shape, generator=generator).to(dtype)
    answers = []
    for cast in (lambda t: t, torch.Tensor.double):
        a, b = cast(x).clone().requires_grad_(), cast(weight).clone().requires_grad_()
        y = rms_norm(a, b, 1e-5) if cast(x) is x else F.rms_norm(a, (shape[-1],), b, 1e-5)
        answers.append((y.detach(), *torch.autograd.grad(y, (a, b), cast(dy))))
    return answers


def test_the_way_that_runs_is_the_one_asked_for():
    assert runs_triton(torch.zeros(1)) == (os.environ.get("TRITON_INTERPRET") == "1")
    assert not runs_triton(torch.zeros(1, dtype=torch.float64))


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("shape", [(1, 8), (5, 7), (2, 3, 64), (200, 100), (9, 2049), (3, 16384)])
def test_output_and_gradients_agree_with_float64(shape, dtype):
    ours, exact = both_ways(shape, dtype)
    for got, wanted in zip(ours, exact):
        assert got.dtype == dtype
        assert error(got, wanted) < BOUNDS[dtype]


@settings(max_examples=5 if INTERPRETED else 15, deadline=None)
@given(rows=st.integers(1, 150), width=st.integers(8, 300), seed=st.integers(0, 99))
def test_any_ragged_size_agrees_with_float64(rows, width, seed):
    for got, wanted in zip(*both_ways((rows, width), torch.float32, seed)):
        assert error(got, wanted) < 2e-6


def test_a_weight_in_more_bits_keeps_them_in_its_gradient():
    (y, dx, dweight), exact = both_ways((40, 24), torch.bfloat16, weight_dtype=torch.float32)
    assert (y.dtype, dx.dtype, dweight.dtype) == (torch.bfloat16, torch.bfloat16, torch.float32)
    assert error(dweight, exact[2]) < 1e-6


def test_columns_that_are_not_neighbours_are_read_where_they_are():
    x, weight = torch.randn(6, 9).T.requires_grad_(), torch.randn(6, requires_grad=True)
    dy = torch.randn(6, 9).T
    assert x.stride() == dy.stride() == (1, 9)
    ours = torch.autograd.grad(rms_norm(x, weight, 1e-5), (x, weight), dy)
    exact = torch.autograd.grad(F.rms_norm(x, (6,), weight, 1e-5), (x, weight), dy)
    for got, wanted in zip(ours, exact):
        torch.testing.assert_close(got, wanted)


def test_every_other_row_of_a_tensor_is_read_where_it_is():
    x, weight = torch.randn(8, 12)[::2].requires_grad_(), torch.randn(12, requires_grad=True)
    for dy in (torch.randn(4, 12), torch.randn(12, 12)[::3]):
        ours = torch.autograd.grad(rms_norm(x, weight, 1e-5), (x, weight), dy)
        exact = torch.autograd.grad(F.rms_norm(x, (12,), weight, 1e-5), (x, weight), dy)
        for got, wanted in zip(ours, exact):
            torch.testing.assert_close(got, wanted)


def test_two_runs_agree_to_the_bit():
    first, second = (both_ways((61, 33), torch.float32)[0] for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second))


def test_large_and_tiny_rows_stay_finite():
    x = torch.tensor([[1e15, -1e15, 2e15], [1e-15, 0.0, 0.0], [0.0, 0.0, 0.0]], requires_grad=True)
    y = rms_norm(x, torch.ones(3), 1e-6)
    y.sum().backward()
    assert y.isfinite().all() and x.grad.isfinite().all()
    assert y[0].tolist() == pytest.approx([2**-0.5, -(2**-0.5), 2**0.5], rel=1e-5)


def test_a_row_of_one_element_has_its_sign_times_the_weight():
    assert rms_norm(torch.tensor([[-5.0]]), torch.tensor([3.0]), 1e-12).tolist() == [[-3.0]]


def test_gradients_in_float64_pass_gradcheck():
    x = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda a, b: rms_norm(a, b, 1e-5), (x, weight))


def test_no_rows_give_no_rows_and_a_zero_gradient():
    x, weight = torch.empty(0, 4, requires_grad=True), torch.ones(4, requires_grad=True)
    y = rms_norm(x, weight)
    y.sum().backward()
    assert y.shape == (0, 4)
    assert weight.grad.tolist() == [0, 0, 0, 0]


def test_it_compiles_whole_and_answers_the_same():
    x, weight = torch.randn(4, 3, 10, requires_grad=True), torch.randn(10, requires_grad=True)

    def used(a, b):
        return (rms_norm(a * 2, b, 1e-5) ** 2).sum()

    plain = torch.autograd.grad(used(x, weight), (x, weight))
    compiled = torch.compile(used, backend="aot_eager", fullgraph=True)
    for got, wanted in zip(torch.autograd.grad(compiled(x, weight), (x, weight)), plain):
        torch.testing.assert_close(got, wanted)


def test_the_operators_declare_what_they_do():
    x, weight = torch.randn(3, 4), torch.randn(4)
    _, scales = torch.ops.stepladder.rms_norm(x, weight, 1e-5)
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(torch.ops.stepladder.rms_norm, (x, weight, 1e-5), test_utils=checks)
    arguments = (torch.randn(3, 4), x, weight, scales)
    torch.library.opcheck(torch.ops.stepladder.rms_norm_backward, arguments, test_utils=checks)


def test_on_fake_tensors_only_shapes_are_computed():
    with FakeTensorMode():
        x, weight = torch.empty(2, 5, 8, requires_grad=True), torch.empty(8, requires_grad=True)
        y = rms_norm(x, weight)
        y.sum().backward()
    assert y.shape == x.grad.shape == (2, 5, 8)
    assert weight.grad.shape == (8,)


def test_a_weight_of_another_width_is_refused():
    with pytest.raises(ModelError) as caught:
        rms_norm(torch.ones(2, 8), torch.ones(4))
    assert str(caught.value) == (
        "rms_norm.weight: shape (4,) does not fit rows of 8. Give it shape (8,)."
    )


def test_a_row_too_wide_for_one_program_is_refused_with_the_way_out():
    with pytest.raises(ModelError) as caught:
        rms_norm(torch.ones(1, 16385), torch.ones(16385))
    assert str(caught.value) == (
        "rms_norm: rows of 16385 are wider than the 16384 one program holds. "
        "Use torch.nn.functional.rms_norm for this layer."
    )
