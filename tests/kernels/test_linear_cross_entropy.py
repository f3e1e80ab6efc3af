"""The output layer with its loss against float64. Run plainly this tests the torch arithmetic;
`test_kernels_interpreted` runs it again with TRITON_INTERPRET=1: then the Triton programs."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from stepladder.errors import ModelError, PlanError
from stepladder.kernels import linear_cross_entropy
from stepladder.kernels.backend import INTERPRETED
from stepladder.kernels.linear_cross_entropy import _chunks

torch.set_num_threads(1)
# Relative error norms; the logits themselves are rounded to the type of `hidden`, as a linear does.
BOUNDS = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.5e-2}


@pytest.fixture(autouse=True)
def poisoned_memory():
    """Fill fresh tensors with NaN: an element nobody writes cannot pass."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def some(tokens=13, width=16, vocabulary=37, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(tokens, width, generator=generator).to(dtype)
    weight = torch.randn(vocabulary, width, generator=generator).to(dtype)
    targets = torch.randint(0, vocabulary, (tokens,), generator=generator)
    targets[1::3] = -100
    return hidden, weight, targets


def ours(hidden, weight, targets, dloss=1.0, **options):
    leaves = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
    loss = linear_cross_entropy(*leaves, targets, **options)
    return loss.detach(), *torch.autograd.grad(loss, leaves, torch.tensor(dloss))


def exact(hidden, weight, targets, dloss=1.0, **options):
    leaves = hidden.double().requires_grad_(), weight.double().requires_grad_()
    loss = F.cross_entropy(leaves[0] @ leaves[1].T, targets, **options)
    dloss = torch.tensor(dloss, dtype=torch.float64)
    return loss.detach(), *torch.autograd.grad(loss, leaves, dloss)


def error(got, wanted):
    assert got.shape == wanted.shape
    return ((got.double() - wanted).norm() / wanted.norm().clamp(min=1e-300)).item()


@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("chunk", [1, 4, 13, 100])
def test_loss_and_gradients_agree_with_float64(chunk, dtype, reduction):
    numbers = some(dtype=dtype)
    got = ours(*numbers, 1.7, chunk=chunk, reduction=reduction)
    wanted = exact(*numbers, 1.7, reduction=reduction)
    assert [value.dtype for value in got] == [torch.float32, dtype, dtype]
    for value, right in zip(got, wanted):
        assert error(value, right) < BOUNDS[dtype]


@settings(max_examples=5 if INTERPRETED else 15, deadline=None)
@given(
    tokens=st.integers(1, 20), vocabulary=st.integers(2, 50), chunk=st.integers(1, 25),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_the_chunk_changes_no_number_beyond_rounding(tokens, vocabulary, chunk, seed):
    numbers = some(tokens, 8, vocabulary, seed=seed)
    for value, right in zip(ours(*numbers, chunk=chunk), exact(*numbers, reduction="sum")):
        torch.testing.assert_close(value.double(), right, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("heights", [(0, 100, 200), (0, 29, 58), (200, 100, 0), (-1e4, 5, 4)])
def test_words_far_above_those_before_them_count_for_what_they_are(heights, dtype):
    """A program reads 4,096 words at a time, and writes them again before it knows the next."""
    hidden, weight, targets = some(tokens=4, width=2, vocabulary=9000, dtype=dtype)
    hidden[:], weight[:, 0] = 1, weight[:, 0].round()  # logits without rounding
    for at, height in enumerate(heights):
        weight[at * 4096 : (at + 1) * 4096, 1] = height
    targets[:] = torch.tensor([5, 5000, 8999, -100])
    # Probabilities add up to 1 but for 9,000 roundings. A library that adds like numbers one after
    # the other rounds all of them in one direction, and which one does depends on the processor.
    bound = max(BOUNDS[dtype], 9000 * 2**-24)
    for value, right in zip(
        ours(hidden, weight, targets), exact(hidden, weight, targets, reduction="sum")
    ):
        assert error(value, right) < bound


def test_a_target_outside_the_vocabulary_is_nan_and_no_other_tokens_gradient():
    hidden, weight, targets = some()
    targets[3] = 37
    loss, dhidden, _ = ours(hidden, weight, targets, chunk=4)
    assert loss.isnan()
    assert dhidden.isnan().any(1).tolist() == [token == 3 for token in range(13)]


def test_an_ignored_token_counts_nothing_though_its_logits_overflow():
    hidden, weight, targets = some()
    wanted = ours(hidden, weight, targets)
    hidden[1] = 1e38
    assert targets[1] == -100 and not (hidden[1] @ weight.T).isfinite().all()
    for value, right in zip(ours(hidden, weight, targets), wanted):
        assert torch.equal(value, right)


def test_features_whose_columns_are_not_neighbours():
    hidden, weight, targets = some()
    turned = hidden.T.contiguous().T
    assert turned.stride() != hidden.stride()
    for value, right in zip(ours(turned, weight, targets), ours(hidden, weight, targets)):
        torch.testing.assert_close(value, right)


class LargestTensor(TorchDispatchMode):
    """Watches every operation torch makes and remembers the largest answer."""

    def __init__(self):
        super().__init__()
        self.largest_bytes = 0

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        answer = op(*args, **(kwargs or {}))
        for tensor in answer if isinstance(answer, tuple | list) else (answer,):
            if isinstance(tensor, torch.Tensor):
                self.largest_bytes = max(self.largest_bytes, tensor.nbytes)
        return answer


def test_the_logits_never_exist_whole():
    hidden, weight, targets = some(tokens=64, width=8, vocabulary=50)
    with LargestTensor() as seen:  # inside the operator, which from outside is one call
        _chunks(hidden, weight, targets, torch.ones(()), 8, -100, True, True)
    chunk_bytes, all_bytes = 8 * 50 * 4, 64 * 50 * 4
    assert chunk_bytes <= seen.largest_bytes <= max(chunk_bytes, hidden.nbytes) < all_bytes


def test_the_weights_gradient_is_summed_in_float32_when_the_weight_is_bf16():
    hidden = torch.ones(65, 1, dtype=torch.bfloat16)
    hidden[0] = 256
    weight = torch.zeros(4, 1, dtype=torch.bfloat16)
    _, _, dweight = ours(hidden, weight, torch.zeros(65).long(), chunk=1)
    assert torch.tensor(64.0).bfloat16() + 0.25 == 64  # where a sum in bf16 would stay
    assert dweight[1].item() == 64 + 64 * 0.25


def test_under_autocast_the_product_is_bf16_and_a_float32_weight_keeps_a_float32_gradient():
    hidden, weight, targets = some()
    leaf = weight.clone().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = linear_cross_entropy(hidden, leaf, targets, chunk=4)
    loss.backward()
    rounded = exact(hidden.bfloat16(), weight.bfloat16(), targets, reduction="sum")
    assert leaf.grad.dtype == torch.float32
    assert error(loss.detach(), rounded[0]) < 1e-2
    assert error(leaf.grad, rounded[2]) < 1.5e-2
    assert error(loss.detach(), exact(hidden, weight, targets, reduction="sum")[0]) > 1e-6


@pytest.mark.parametrize("frozen", [0, 1])
def test_a_frozen_side_gets_no_gradient_and_the_other_is_right(frozen):
    hidden, weight, targets = some()
    leaves = [hidden.clone(), weight.clone()]
    leaves[1 - frozen].requires_grad_()
    linear_cross_entropy(*leaves, targets, chunk=4).backward()
    wanted = exact(hidden, weight, targets, reduction="sum")[2 - frozen]
    assert leaves[frozen].grad is None
    assert error(leaves[1 - frozen].grad, wanted) < 2e-6


def test_without_gradients_only_the_loss_is_computed():
    hidden, weight, targets = some()
    loss = linear_cross_entropy(hidden, weight, targets, chunk=4)
    assert not loss.requires_grad
    assert error(loss, exact(hidden, weight, targets, reduction="sum")[0]) < 1e-6


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_when_all_are_ignored_loss_and_gradients_are_exactly_zero(reduction):
    hidden, weight, targets = some()
    loss, *grads = ours(hidden, weight, torch.full_like(targets, -100), reduction=reduction)
    assert loss.item() == 0.0
    assert all(not grad.any() for grad in grads)


def test_of_no_tokens_loss_and_gradients_are_exactly_zero():
    hidden, weight, targets = some(tokens=0)
    loss, dhidden, dweight = ours(hidden, weight, targets)
    assert loss == 0 and dhidden.shape == hidden.shape
    assert torch.equal(dweight, torch.zeros_like(weight))


def test_in_fp16_the_sum_may_pass_65504_if_the_mean_does_not():
    hidden = torch.full((16, 1), 16384.0, dtype=torch.float16)
    weight, targets = torch.zeros(2, 1, dtype=torch.float16), torch.zeros(16).long()
    _, _, dweight = ours(hidden, weight, targets, chunk=4, reduction="mean")
    assert dweight.tolist() == [[-8192.0], [8192.0]]  # the sum of 16 of them is 131072


def test_a_second_backward_is_an_error():
    hidden, weight, targets = some()
    loss = linear_cross_entropy(hidden.requires_grad_(), weight, targets)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_more_dims_of_tokens_are_the_same_loss():
    hidden, weight, targets = some(tokens=12)
    flat = ours(hidden, weight, targets, chunk=5)
    deep = ours(hidden.view(3, 4, 16), weight, targets.view(3, 4), chunk=5)
    assert flat[0] == deep[0]
    assert torch.equal(flat[1].view(3, 4, 16), deep[1])
    assert torch.equal(flat[2], deep[2])


def test_it_compiles_whole_and_answers_the_same():
    hidden, weight, targets = some()

    def used(a, b):
        return linear_cross_entropy(a * 2, b, targets, chunk=4, reduction="mean") * 3

    def gradients(function):
        leaves = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
        return torch.autograd.grad(function(*leaves), leaves)

    compiled = torch.compile(used, backend="aot_eager", fullgraph=True)
    for got, wanted in zip(gradients(compiled), gradients(used)):
        torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("wanted", [(True, True), (True, False), (False, True), (False, False)])
def test_the_operator_declares_what_it_does(wanted):
    arguments = (*some(), torch.ones(()), 4, -100, *wanted)
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(torch.ops.stepladder.linear_cross_entropy, arguments, test_utils=checks)


def test_on_fake_tensors_only_shapes_are_computed():
    with FakeTensorMode():
        hidden = torch.empty(2, 5, 8, requires_grad=True)
        weight = torch.empty(30, 8, dtype=torch.float32, requires_grad=True)
        linear_cross_entropy(hidden, weight, torch.empty(2, 5, dtype=torch.long)).backward()
    assert hidden.grad.shape == (2, 5, 8)
    assert weight.grad.shape == (30, 8)


@pytest.mark.parametrize(
    ("error_type", "change", "message"),
    [
        (PlanError, {"chunk": 0}, "chunk: 0 is not a number of tokens. Use 1 or more."),
        (
            PlanError, {"reduction": "none"},
            "reduction: 'none' is not a reduction here. Choose one of: sum, mean.",
        ),
        (
            ModelError, {"weight": torch.zeros(16, 37)},
            "weight: shape (16, 37) does not take 16 features. Give it shape (vocabulary, 16).",
        ),
        (
            ModelError, {"targets": torch.zeros(3).long()},
            "targets: shape (3,) is not one class for each row of (13, 16). "
            "Give them shape (13,).",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_served_is_refused_in_words(error_type, change, message):
    hidden, weight, targets = some()
    with pytest.raises(error_type) as caught:
        linear_cross_entropy(**{"hidden": hidden, "weight": weight, "targets": targets, **change})
    assert str(caught.value) == message
