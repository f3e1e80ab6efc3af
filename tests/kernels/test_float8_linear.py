"""8-bit products against the same in float64: casts, a linear, the output layer with its loss."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from stepladder.kernels import linear_cross_entropy
from stepladder.kernels.float8_linear import GRADIENTS, VALUES, cast, float8_linear, pad_to_tiles

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
KINDS = [VALUES, GRADIENTS]
# Bounds below: three and two binary digits round by 2.6 and 5.3 % of a number, on average.


def drawn(*shape, seed=0, dtype=torch.bfloat16):
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=draw).to(dtype).to(DEVICE)


def off(found, exact):
    found, exact = found.detach().double(), exact.detach().double()
    return float((found - exact).norm() / exact.norm())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(1, 1), (100, 48), (257, 130), (16, 512)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_cast_is_torchs_own_in_both_layouts(shape, kind, dtype):
    matrix = drawn(*shape, dtype=dtype) * 3
    plain, transposed = cast(matrix, kind)
    matrix = matrix.bfloat16()
    scale = torch.finfo(kind).max / matrix.abs().amax().float()
    assert torch.equal(plain.values.float(), (matrix.float() * scale).to(kind).float())
    assert torch.equal(transposed.values.float(), plain.values.float().T)
    assert plain.values.is_contiguous() and transposed.values.is_contiguous()
    assert plain.values.float().abs().amax() == torch.finfo(kind).max, "all of the range is used"
    assert torch.isclose(plain.scale * scale, torch.ones_like(scale))


def test_nothing_but_zeros_stays_so_and_what_is_not_a_number_is_not_lost():
    plain, _ = cast(drawn(16, 16) * 0, VALUES)
    assert not plain.values.float().any() and plain.scale > 0
    for odd in (float("nan"), float("inf")):
        matrix = drawn(16, 16)
        matrix[3, 5] = odd
        outputs = float8_linear(matrix, drawn(32, 16, seed=1))
        assert not outputs[3].isfinite().any()


@pytest.mark.parametrize("shape", [(32,), (3, 7)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_linear_and_its_gradients_are_those_of_exact_products_but_for_8_bits(shape, dtype):
    inputs = drawn(*shape, 64).requires_grad_()
    weight = drawn(48, 64, seed=1, dtype=dtype).requires_grad_()
    bias = drawn(48, seed=2, dtype=dtype).requires_grad_()
    outputs = float8_linear(inputs, weight, bias)
    given = drawn(*shape, 48, seed=3)
    outputs.backward(given)
    assert outputs.dtype == inputs.grad.dtype == torch.bfloat16
    assert weight.grad.dtype == bias.grad.dtype == dtype
    exact = [t.detach().double().requires_grad_() for t in (inputs, weight, bias)]
    wanted = functional.linear(*exact)
    wanted.backward(given.double())
    assert 1e-3 < off(outputs, wanted) < 0.05
    assert 1e-3 < off(inputs.grad, exact[0].grad) < 0.08
    assert 1e-3 < off(weight.grad, exact[1].grad) < 0.08
    assert off(bias.grad, exact[2].grad) < 1e-2


@pytest.mark.parametrize(("given", "made"), [(0, 0), (1, 16), (16, 16), (21, 32)])
def test_rows_are_filled_up_to_what_matrix_units_sum_over(given, made):
    rows = drawn(given, 4)
    filled = pad_to_tiles(rows)
    assert len(filled) == made
    assert torch.equal(filled[:given], rows) and not filled[given:].any()


def test_autocast_decides_what_a_linear_reads():
    inputs, weight = drawn(16, 32, dtype=torch.float32).requires_grad_(), drawn(16, 32, seed=1)
    with torch.autocast(DEVICE, torch.bfloat16):
        outputs = float8_linear(inputs, weight)
    outputs.sum().backward()
    assert outputs.dtype == torch.bfloat16
    assert inputs.grad.dtype == torch.float32


def test_a_frozen_weight_gets_no_gradient():
    inputs, weight = drawn(16, 32).requires_grad_(), drawn(16, 32, seed=1)
    float8_linear(inputs, weight).sum().backward()
    assert inputs.grad is not None and weight.grad is None


def descend(multiply, rate=0.02):
    """Twenty steps of plain gradient descent on one linear; the loss of each."""
    weight = nn.Parameter(drawn(16, 32, seed=1) * 0)
    rows, wanted = drawn(64, 32), drawn(64, 32) @ drawn(16, 32, seed=2).T
    losses = []
    for _ in range(20):
        loss = (multiply(rows, weight).float() - wanted.float()).square().mean()
        (gradient,) = torch.autograd.grad(loss, weight)
        weight.data -= rate * gradient * 32
        losses.append(loss.item())
    return losses


def test_plain_descent_takes_the_same_way():
    assert descend(float8_linear) == pytest.approx(descend(functional.linear), rel=0.05)


@pytest.mark.parametrize("rows", [64, 50])
@pytest.mark.parametrize("chunk", [16, 20, 1000])
def test_the_output_layer_and_its_loss(rows, chunk):
    hidden = drawn(rows, 32).requires_grad_()
    weight = (drawn(80, 32, seed=1) / 2).requires_grad_()
    targets = torch.arange(rows, device=DEVICE) * 7 % 80
    targets[3] = -100
    loss = linear_cross_entropy(hidden, weight, targets, chunk=chunk, reduction="mean", float8=True)
    (loss * 3).backward()
    exact = [t.detach().double().requires_grad_() for t in (hidden, weight)]
    wanted = functional.cross_entropy(exact[0] @ exact[1].T, targets)
    (wanted * 3).backward()
    assert loss.item() == pytest.approx(wanted.item(), rel=0.01)
    assert off(hidden.grad, exact[0].grad) < 0.1
    assert off(weight.grad, exact[1].grad) < 0.1
    assert not hidden.grad[3].any(), "an ignored row has no gradient"


def test_a_wrong_class_is_loud():
    weight = drawn(80, 32, seed=1).requires_grad_()
    targets = torch.zeros(32, dtype=torch.long, device=DEVICE)
    targets[0] = 80
    loss = linear_cross_entropy(drawn(32, 32), weight, targets, float8=True)
    loss.backward()
    assert loss.isnan() and weight.grad.isnan().any()


def test_without_gradients_only_the_loss_is_made():
    hidden, weight = drawn(32, 32), drawn(80, 32, seed=1)
    targets = torch.zeros(32, dtype=torch.long, device=DEVICE)
    with torch.no_grad():
        found = linear_cross_entropy(hidden, weight, targets, float8=True)
    wanted = functional.cross_entropy(hidden.double() @ weight.double().T, targets, reduction="sum")
    assert found.item() == pytest.approx(wanted.item(), rel=0.02)
    assert linear_cross_entropy(hidden[:0], weight, targets[:0], float8=True) == 0


def test_the_operators_keep_torchs_rules():
    checks = ("test_schema", "test_faketensor")
    matrix = drawn(16, 32)
    arguments = (matrix, matrix.abs().amax(), False)
    torch.library.opcheck(torch.ops.stepladder.float8_cast, arguments, test_utils=checks)
    targets = torch.zeros(16, dtype=torch.long, device=DEVICE)
    share = torch.ones((), device=DEVICE)
    arguments = (matrix, drawn(48, 32, seed=1), targets, share, 16, -100, True, True)
    operator = torch.ops.stepladder.float8_linear_cross_entropy
    torch.library.opcheck(operator, arguments, test_utils=checks)
