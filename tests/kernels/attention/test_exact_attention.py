"""Gradients of attention with fixed sums, against attention in float64 by torch's autograd."""

import pytest
import torch

from stepladder.kernels.attention import use_exact_attention
from stepladder.kernels.attention.exact_attention import attention_backward, computes, fits
from stepladder.kernels.backend import INTERPRETED, triton

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
RUNS = triton is not None and (INTERPRETED or DEVICE == "cuda")
# Interpreted, 16 bits are not multiplied as devices do.
DTYPE = torch.float32 if INTERPRETED else torch.bfloat16
NEAR = 1e-5 if INTERPRETED else 1e-2


def attend(query, key, value, *, causal):
    """Attention written out, with the log-sum-exp of the scores."""
    group = query.shape[1] // key.shape[1]
    key, value = (each.repeat_interleave(group, 1) for each in (key, value))
    scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
    if causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(later, float("-inf"))
    return scores.softmax(-1) @ value, scores.logsumexp(-1)


SHAPES = [
    # batch, heads, heads of keys, queries, keys, width, causal
    (1, 2, 2, 256, 256, 64, True),
    (2, 4, 2, 130, 130, 24, True),
    (1, 2, 1, 33, 150, 32, False),
    (1, 1, 1, 5, 5, 128, True),
]


def draw(shape):
    batch, heads, shared, queries, keys, width, _ = shape
    generator = torch.Generator().manual_seed(1)
    sizes = [(heads, queries), (shared, keys), (shared, keys), (heads, queries)]
    # Heads beside each other for each token, as projections leave them.
    drawn = [torch.randn(batch, rows, n, width, generator=generator) for n, rows in sizes]
    return [each.to(DEVICE, DTYPE).transpose(1, 2) for each in drawn]


def backward(shape):
    *inputs, gradient = draw(shape)
    wide = [each.double().requires_grad_() for each in inputs]
    out, norms = attend(*wide, causal=shape[-1])
    expected = torch.autograd.grad(out, wide, gradient.double())
    saved = out.detach().to(DTYPE), norms.detach().float()
    found = attention_backward(gradient, *inputs, *saved, causal=shape[-1], scale=None)
    return inputs, found, expected


@pytest.mark.skipif(not RUNS, reason="needs a GPU, or Triton's interpreter")
@pytest.mark.parametrize("shape", SHAPES)
def test_gradients_are_those_of_attention(shape):
    for given, one, right in zip(*backward(shape), strict=True):
        assert (one.double() - right).norm() <= NEAR * right.norm()
        assert one.stride() == torch.empty_like(given).stride()


def test_only_what_the_programs_compute_is_taken_over():
    torch.use_deterministic_algorithms(True)
    try:
        q, k = torch.empty(1, 2, 8, 16).bfloat16(), torch.empty(1, 2, 9, 16).bfloat16()
        assert computes(q, q, q, 0.0, True) and computes(q, k, k, 0.0, False)
        assert not computes(q, k, k, 0.0, True)  # which keys would the last query not see?
        assert not computes(q, q, q, 0.1, True)
        assert not computes(q.float(), q.float(), q.float(), 0.0, True)
        wide = torch.empty(1, 1, 8, 256).bfloat16()
        assert not computes(wide, wide, wide, 0.0, True)
        assert not computes(q[:, :, :0], q[:, :, :0], q[:, :, :0], 0.0, True)
    finally:
        torch.use_deterministic_algorithms(False)
    assert not computes(q, q, q, 0.0, True)  # a run that is not exact keeps torch's attention


def test_memory_that_the_programs_cannot_address_is_copied():
    assert fits(torch.empty(1, 2, 8, 16).transpose(1, 2))
    assert not fits(torch.empty(1, 2, 16, 8).transpose(2, 3))
    assert not fits(torch.empty(1, device="meta").expand(1, 2, 2**31, 1).as_strided(
        (1, 1, 2**20, 1), (1, 1, 2**12, 1)))  # fmt: skip


def test_a_processor_keeps_its_own_attention():
    assert not use_exact_attention(torch.device("cpu"))
