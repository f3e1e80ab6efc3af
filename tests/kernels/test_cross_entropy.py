"""Cross-entropy against float64. Run plainly this tests the torch arithmetic;
`test_kernels_interpreted` runs it again with TRITON_INTERPRET=1: then the Triton programs."""

import os

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from stepladder.errors import ModelError, PlanError
from stepladder.kernels import cross_entropy
from stepladder.kernels.backend import INTERPRETED, runs_triton

torch.set_num_threads(1)
# Relative error norms. In bf16 Triton's interpreter cuts where a GPU rounds, twice the error.
BOUNDS = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 1e-2}
WAYS = pytest.mark.parametrize("in_place", [False, True], ids=["plain", "in_place"])


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


def some(rows, vocabulary, dtype=torch.float32, seed=0, ignored=0.3):
    """Logits, targets of which some are ignored, never all of them."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, vocabulary, generator=generator).mul(4).to(dtype)
    targets = torch.randint(0, vocabulary, (rows,), generator=generator)
    drop = torch.rand(rows, generator=generator) < ignored
    drop[0] = False
    return logits, targets.masked_fill(drop, -100)


def ours(logits, targets, dloss=1.0, **options):
    leaf = logits.clone().requires_grad_()
    loss = cross_entropy(leaf, targets, **options)
    loss.backward(torch.tensor(dloss, dtype=loss.dtype))
    return loss.detach(), leaf.grad


def exact(logits, targets, dloss=1.0, **options):
    leaf = logits.double().requires_grad_()
    loss = F.cross_entropy(leaf, targets, **options)
    loss.backward(torch.tensor(dloss, dtype=torch.float64))
    return loss.detach(), leaf.grad


def test_the_way_that_runs_is_the_one_asked_for():
    assert runs_triton(torch.zeros(1)) == (os.environ.get("TRITON_INTERPRET") == "1")


@WAYS
@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("shape", [(1, 1), (3, 2), (7, 100), (4, 4096), (3, 4097), (2, 50257)])
def test_loss_and_gradient_agree_with_float64(shape, dtype, reduction, in_place):
    logits, targets = some(*shape, dtype)
    loss, grad = ours(logits, targets, 1.7, reduction=reduction, in_place=in_place)
    wanted_loss, wanted_grad = exact(logits, targets, 1.7, reduction=reduction)
    assert (loss.dtype, grad.dtype) == (torch.float32, dtype)
    assert error(loss, wanted_loss) < 1e-6
    assert error(grad, wanted_grad) < BOUNDS[dtype]


@settings(max_examples=5 if INTERPRETED else 15, deadline=None)
@given(
    rows=st.integers(1, 20),
    vocabulary=st.integers(2, 200),
    seed=st.integers(0, 99),
    ignored=st.floats(0, 1),
    in_place=st.booleans(),
)
def test_any_ragged_size_agrees_with_float64(rows, vocabulary, seed, ignored, in_place):
    logits, targets = some(rows, vocabulary, seed=seed, ignored=ignored)
    loss, grad = ours(logits, targets, in_place=in_place)
    wanted_loss, wanted_grad = exact(logits, targets, reduction="sum")
    torch.testing.assert_close(loss.double(), wanted_loss, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(grad.double(), wanted_grad, rtol=1e-5, atol=1e-6)


def test_without_reduction_each_row_keeps_its_loss_and_its_own_gradient():
    logits, targets = some(6, 11)
    leaf, dlosses = logits.view(2, 3, 11).clone().requires_grad_(), torch.randn(2, 3)
    losses = cross_entropy(leaf, targets.view(2, 3), reduction="none")
    losses.backward(dlosses)
    there = logits.double().requires_grad_()
    wanted = F.cross_entropy(there, targets, reduction="none")
    wanted.backward(dlosses.view(-1).double())
    torch.testing.assert_close(losses.view(-1).double(), wanted, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(leaf.grad.view(6, 11).double(), there.grad, rtol=1e-5, atol=1e-6)


@WAYS
@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_when_all_are_ignored_loss_and_gradient_are_exactly_zero(reduction, in_place):
    logits = torch.tensor([[float("nan"), 1.0], [float("inf"), 2.0]])  # what padding may hold
    loss, grad = ours(logits, torch.tensor([-100, -100]), reduction=reduction, in_place=in_place)
    assert loss.item() == 0.0
    assert grad.tolist() == [[0.0, 0.0], [0.0, 0.0]]


@WAYS
def test_another_ignore_index_may_be_a_class(in_place):
    logits, targets = some(5, 9, ignored=0)
    targets[2] = 0
    loss, grad = ours(logits, targets, ignore_index=0, in_place=in_place)
    wanted_loss, wanted_grad = exact(logits, targets, reduction="sum", ignore_index=0)
    assert error(loss, wanted_loss) < 1e-6
    assert error(grad, wanted_grad) < 1e-6
    assert grad[2].tolist() == [0.0] * 9


@WAYS
@pytest.mark.parametrize("height", [1e4, -1e4, 3e38])
def test_logits_of_any_height_do_not_overflow(height, in_place):
    logits = torch.tensor([[height, height, -3e38]])
    loss, grad = ours(logits, torch.tensor([1]), in_place=in_place)
    assert loss.item() == pytest.approx(0.693147, rel=1e-4)
    assert grad.tolist() == [pytest.approx([0.5, -0.5, 0.0], abs=1e-6)]


@WAYS
def test_a_masked_chunk_of_the_vocabulary_counts_nothing(in_place):
    logits, targets = some(3, 9000, ignored=0)
    logits[:, :4500] = -float("inf")  # more than one chunk of the Triton programs
    targets[:] = 5000
    loss, grad = ours(logits, targets, in_place=in_place)
    wanted_loss, wanted_grad = exact(logits, targets, reduction="sum")
    assert error(loss, wanted_loss) < 1e-6
    assert error(grad, wanted_grad) < 2e-6


@WAYS
@pytest.mark.parametrize("wrong", [7, -1, 2**40])
def test_a_target_outside_the_vocabulary_is_nan_for_its_row_alone(wrong, in_place):
    loss, grad = ours(torch.zeros(2, 7), torch.tensor([wrong, 3]), in_place=in_place)
    assert loss.isnan()
    assert grad[0].isnan().all()
    assert grad[1].isfinite().all()


@WAYS
def test_int32_targets_and_more_dims_are_the_same_loss(in_place):
    logits, targets = some(6, 10)
    loss, grad = ours(logits, targets, in_place=in_place)
    again = logits.view(3, 2, 10), targets.view(3, 2).int()
    assert ours(*again, in_place=in_place)[0] == loss
    assert torch.equal(ours(*again, in_place=in_place)[1].view(6, 10), grad)


def test_rows_that_are_not_neighbours_are_read_where_they_are():
    wide, targets = torch.randn(5, 3, 8), torch.randint(0, 8, (5, 2))
    logits = wide[:, :2].detach().requires_grad_()
    cross_entropy(logits, targets).backward()
    wanted = exact(wide[:, :2].reshape(10, 8), targets.view(10), reduction="sum")[1]
    torch.testing.assert_close(logits.grad.view(10, 8).double(), wanted, rtol=1e-5, atol=1e-6)


def test_columns_that_are_not_neighbours_are_read_where_they_are():
    logits, targets = torch.randn(8, 5).T.requires_grad_(), torch.tensor([0, 7, 3, -100, 2])
    assert logits.stride() == (1, 5)
    cross_entropy(logits, targets).backward()
    wanted = exact(logits.detach(), targets, reduction="sum")[1]
    torch.testing.assert_close(logits.grad.double(), wanted, rtol=1e-5, atol=1e-6)


def test_in_place_the_logits_become_the_gradient_and_no_second_buffer_exists():
    hidden = torch.randn(4, 6, requires_grad=True)
    logits, targets = hidden @ torch.randn(6, 9), torch.randint(0, 9, (4,))
    before, seen = logits.detach().clone(), []
    logits.register_hook(lambda grad: seen.append((grad.data_ptr(), grad.clone())))
    cross_entropy(logits, targets, in_place=True).backward()
    assert seen[0][0] == logits.data_ptr()
    torch.testing.assert_close(
        seen[0][1].double(), exact(before, targets, reduction="sum")[1], rtol=1e-5, atol=1e-6
    )


def test_in_place_without_gradients_leaves_the_logits_alone():
    logits, targets = some(4, 9)
    before = logits.clone()
    loss = cross_entropy(logits, targets, in_place=True)
    assert loss == cross_entropy(logits, targets)
    assert torch.equal(logits, before)


def test_in_place_on_logits_another_operation_needs_is_an_error():
    logits = torch.randn(3, 5, requires_grad=True).tanh()  # tanh keeps its output for its gradient
    loss = cross_entropy(logits, torch.tensor([0, 1, 2]), in_place=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_in_place_a_second_backward_is_an_error_and_plainly_it_is_not():
    logits, targets = some(3, 5)
    kept = logits.clone().requires_grad_()
    loss = cross_entropy(kept, targets)
    first = torch.autograd.grad(loss, kept, retain_graph=True)
    assert torch.equal(first[0], torch.autograd.grad(loss, kept)[0])
    loss = cross_entropy(logits.clone().requires_grad_() * 1, targets, in_place=True)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_in_fp16_a_mean_over_a_large_vocabulary_survives_until_the_loss_scale_arrives():
    logits, targets = torch.zeros(24, 65536, dtype=torch.float16), torch.zeros(24).long()
    _, grad = ours(logits, targets, 65536.0, reduction="mean", in_place=True)
    # 1 / 65536 / 24 has two bits left in fp16; scaled first, all eleven.
    assert grad[0, 1].item() == pytest.approx(1 / 24, rel=1e-3)


def test_gradients_in_float64_pass_gradcheck():
    logits = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    targets = torch.tensor([0, -100, 4, 2])
    assert torch.autograd.gradcheck(
        lambda x: cross_entropy(x, targets, reduction="mean"), (logits,)
    )


def test_no_rows_cost_nothing():
    loss, grad = ours(torch.empty(0, 4), torch.empty(0, dtype=torch.long), reduction="mean")
    assert loss.item() == 0.0
    assert grad.shape == (0, 4)


@WAYS
def test_it_compiles_whole_and_answers_the_same(in_place):
    hidden, weight = torch.randn(6, 8), torch.randn(11, 8)
    targets = torch.tensor([0, 1, -100, 3, 10, 5])

    def used(a, b):
        return cross_entropy(a @ b.T, targets, reduction="mean", in_place=in_place) * 3

    def gradients(function):
        leaves = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
        return torch.autograd.grad(function(*leaves), leaves)

    compiled = torch.compile(used, backend="aot_eager", fullgraph=True)
    for got, wanted in zip(gradients(compiled), gradients(used)):
        torch.testing.assert_close(got, wanted)


def test_the_operators_declare_what_they_do():
    logits, targets = some(3, 5)
    ops, checks = torch.ops.stepladder, ("test_schema", "test_faketensor")
    losses, norms = ops.cross_entropy(logits, targets, -100)
    one = torch.ones(())
    for op, arguments in [
        (ops.cross_entropy, (logits, targets, -100)),
        (ops.cross_entropy_backward, (losses, logits, targets, norms, -100)),
        (ops.cross_entropy_gradient_, (logits.clone(), targets, one, -100)),
        (ops.scale_, (logits.clone(), one * 2)),
    ]:
        torch.library.opcheck(op, arguments, test_utils=checks)


@WAYS
def test_on_fake_tensors_only_shapes_are_computed(in_place):
    with FakeTensorMode():
        logits = torch.empty(2, 5, 8, requires_grad=True)
        loss = cross_entropy(logits, torch.empty(2, 5, dtype=torch.long), in_place=in_place)
        loss.backward()
    assert loss.shape == ()
    assert logits.grad.shape == (2, 5, 8)


@pytest.mark.parametrize(
    ("error_type", "logits", "targets", "options", "message"),
    [
        (
            ModelError, torch.zeros(4, 7), torch.zeros(3).long(), {},
            "targets: shape (3,) is not one class for each row of (4, 7). Give them shape (4,).",
        ),
        (
            ModelError, torch.zeros(4, 7), torch.zeros(4), {},
            "targets: torch.float32 is not a class index. "
            "Give int64 or int32; probabilities are not supported.",
        ),
        (
            PlanError, torch.zeros(4, 7), torch.zeros(4).long(), {"reduction": "meen"},
            "reduction: 'meen' is not a reduction here. Did you mean 'mean'?",
        ),
        (
            PlanError, torch.zeros(4, 7), torch.zeros(4).long(),
            {"reduction": "none", "in_place": True},
            "reduction: 'none' is not a reduction here. Choose one of: sum, mean.",
        ),
        (
            ModelError, torch.zeros(7, 4).T, torch.zeros(4).long(), {"in_place": True},
            "logits: a view with strides (1, 4) cannot be overwritten row by row. "
            "Make them contiguous, or leave in_place off.",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_served_is_refused_in_words(error_type, logits, targets, options, message):
    with pytest.raises(error_type) as caught:
        cross_entropy(logits, targets, **options)
    assert str(caught.value) == message
