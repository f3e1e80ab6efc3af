"""Max pooling against torch's. Run plainly this tests the torch arithmetic;
`test_kernels_interpreted` runs it again with TRITON_INTERPRET=1,
and then it tests the Triton programs."""

import os

import pytest
import torch
import torch.nn.functional as F

from stepladder.kernels import max_pool
from stepladder.kernels.backend import TRITON_DTYPES

SHAPES = [(1, 1, 1, 1), (2, 3, 1, 5), (1, 3, 6, 1), (2, 64, 7, 8), (1, 300, 4, 3), (3, 24, 9, 13)]
NAN, LOWEST = float("nan"), -float("inf")


@pytest.fixture(autouse=True)
def poisoned_memory():
    """Fill fresh tensors: an element a kernel forgets to write cannot pass."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def few_values(shape, dtype=torch.float32):
    """As after ReLU: half are zero and most windows have several largest."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(-3, 4, shape, generator=generator).clamp(min=0).to(dtype)
    return images.contiguous(memory_format=torch.channels_last)


def hostile(shape):
    """With values that are no numbers, and images of nothing but minus infinity."""
    generator = torch.Generator().manual_seed(1)
    chosen = torch.randint(0, 4, shape, generator=generator)
    images = torch.tensor([NAN, LOWEST, 0.0, -1.0])[chosen]
    images[0, 0] = LOWEST
    return images.contiguous(memory_format=torch.channels_last)


def ours(images):
    """Largest values, and the winners' places in their images as torch counts them."""
    best, winners = torch.ops.stepladder.max_pool(images)
    rows, columns = (torch.arange(n) for n in best.shape[2:])
    down, across = winners // 3, winners % 3
    y, x = 2 * rows[:, None] - 1 + down, 2 * columns - 1 + across
    return best, y * images.shape[3] + x


def torchs(images):
    return F.max_pool2d(images, 3, 2, 1, return_indices=True)


def test_the_way_that_runs_is_the_one_asked_for():
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    assert max_pool.fits_triton(few_values((1, 2, 3, 4))) == interpreted
    assert not max_pool.fits_triton(torch.zeros(0, 2, 3, 4))
    huge = torch.zeros(1, 1, 1, 1).expand(2**10, 1, 2**10, 2**10)
    assert not max_pool.fits_triton(huge)  # more pixels than 32 bits count


@pytest.mark.parametrize("dtype", [*TRITON_DTYPES, torch.float64])
@pytest.mark.parametrize("shape", SHAPES)
def test_values_winners_and_gradients_are_torchs(shape, dtype):
    images = few_values(shape, dtype)
    assert all(torch.equal(a, b) for a, b in zip(ours(images), torchs(images), strict=True))
    grads = []
    for pool in (lambda x: torch.ops.stepladder.max_pool(x)[0], lambda x: torchs(x)[0]):
        x = images.clone().requires_grad_()
        out = pool(x)
        weights = torch.arange(out.numel()).reshape(out.shape) % 7 - 3  # their sums are exact
        grads.append(torch.autograd.grad(out, x, weights.to(dtype))[0])
    assert torch.equal(*grads)
    assert grads[0].is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_no_number_wins_and_infinities_lose_as_torchs_do(shape):
    got, wanted = ours(hostile(shape)), torchs(hostile(shape))
    torch.testing.assert_close(got[0], wanted[0], rtol=0, atol=0, equal_nan=True)
    assert torch.equal(got[1], wanted[1])


def test_images_and_gradients_stored_row_by_row_give_the_same():
    images = few_values((2, 8, 6, 5))
    best, winners = torch.ops.stepladder.max_pool(images)
    plain = torch.ops.stepladder.max_pool(images.contiguous())
    assert torch.equal(plain[0], best) and torch.equal(plain[1], winners)
    gradients = [
        torch.ops.stepladder.max_pool_gradient(best.contiguous(memory_format=f), winners, 6, 5)
        for f in (torch.contiguous_format, torch.channels_last)
    ]
    assert torch.equal(*gradients)


def test_no_images_give_none():
    best, winners = torch.ops.stepladder.max_pool(torch.zeros(0, 3, 5, 5))
    assert best.shape == winners.shape == (0, 3, 3, 3)


def test_the_operators_keep_torchs_rules_when_it_compiles():
    torch.use_deterministic_algorithms(False)
    images = few_values((2, 8, 5, 6)).requires_grad_()
    torch.library.opcheck(torch.ops.stepladder.max_pool.default, (images,))
    winners = torch.zeros(2, 8, 3, 3, dtype=torch.int8)
    sample = torch.randn(2, 8, 3, 3), winners, 5, 6
    torch.library.opcheck(torch.ops.stepladder.max_pool_gradient.default, sample)
