"""The same bits each time on a GPU, and attention with fixed sums."""

import pytest
import torch
from torch.nn import functional

from stepladder.kernels.attention import use_exact_attention
from tests.gpu.test_step import start, tokens

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)


def gradients():
    draw = torch.Generator("cuda").manual_seed(0)
    drawn = [torch.randn(2, 256, 4, 64, device="cuda", generator=draw).bfloat16() for _ in range(4)]
    *inputs, gradient = (each.transpose(1, 2) for each in drawn)
    inputs = [each.requires_grad_() for each in inputs]
    out = functional.scaled_dot_product_attention(*inputs, is_causal=True)
    return [out.detach(), *torch.autograd.grad(out, inputs, gradient)]


@pytest.mark.skipif(not HOPPER, reason="measured on compute capability 9.0 alone")
def test_fixed_sums_are_torchs_attention_and_repeat():
    expected = gradients()
    assert use_exact_attention(torch.device("cuda"))
    torch.use_deterministic_algorithms(True)
    try:
        found = [gradients() for _ in range(3)]
    finally:
        torch.use_deterministic_algorithms(False)
    for one, other in zip(found[0], expected, strict=True):
        assert (one.float() - other.float()).norm() < 1e-2 * other.float().norm()
    assert all(map(torch.equal, found[0], each) for each in found[1:])


def trained(plan):
    run = start(plan)
    for step in range(5):
        run.step(tokens(8, seed=step))
    return [p.detach().clone() for p in run.module.parameters()]


@pytest.mark.parametrize("plan", ["bf16 exact=runs", "tf32 exact=runs micro=2"])
def test_two_runs_have_the_same_bits(plan):
    first, second = trained(plan), trained(plan)
    assert all(map(torch.equal, first, second))
