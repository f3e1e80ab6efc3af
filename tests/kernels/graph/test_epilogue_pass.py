"""Sums and GELU's backward are fused into matmuls, and compute the same."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.nn import functional

from stepladder.kernels.graph import epilogue_pass, gelu_pass
from stepladder.kernels.graph.compile import pass_options
from tests.soak import soak_after

from .compiling import every_pass_runs


class Block(nn.Module):
    """Two sums with what went in, the second after GELU between two linears."""

    def __init__(self, bias=True, turned=False):
        super().__init__()
        self.first = nn.Linear(8, 8, bias=bias)
        self.up, self.down = nn.Linear(8, 12), nn.Linear(12, 8, bias=bias)
        self.turned = turned

    def forward(self, x):
        made = self.first(torch.tanh(x))
        x = made + x if self.turned else x + made
        inner = functional.gelu(self.up(torch.tanh(x)), approximate="tanh")
        return (x + self.down(inner)).square().sum()


class Others(Block):
    """Nothing here can be fused into a matmul: a result with another user, an addend that is
    broadcast, or one that is multiplied first."""

    def forward(self, x):
        made = self.first(x)
        read = (x + made).square().sum() + made.sum()
        broadcast = (self.up(x) + self.up.bias * 2).square().sum()
        scaled = torch.add(self.down(torch.tanh(self.up(x))), x, alpha=2).square().sum()
        return read + broadcast + scaled


class Residual(Block):
    def forward(self, x):
        made = self.first(torch.tanh(x))
        return (made + x if self.turned else x + made).square().sum()


@pytest.fixture
def taken(monkeypatch):
    """Every size is worth it here; the fused matmuls, by name."""
    seen = []
    monkeypatch.setattr(epilogue_pass, "is_worth_it", lambda *_: True)
    monkeypatch.setattr(gelu_pass, "is_worth_it", lambda *_: True)
    call = epilogue_pass.call

    def noted(graph, target, *rest):
        if target in (
            epilogue_pass.ours.matmul_add.default,
            epilogue_pass.ours.matmul_gelu_backward.default,
        ):
            seen.append(target.name().removeprefix("stepladder::"))
        return call(graph, target, *rest)

    monkeypatch.setattr(epilogue_pass, "call", noted)
    return seen


def plain_and_compiled(module, x, working=None):
    """What comes out of either, and all gradients."""
    ends = []
    with every_pass_runs():
        for call in (module, torch.compile(module, options=pass_options())):
            module.zero_grad()
            x.grad = None
            with working or nullcontext():
                value = call(x)
            value.backward()
            grads = [p.grad.clone() for p in module.parameters() if p.grad is not None]
            ends.append([value.detach(), x.grad.clone(), *grads])
    return ends


@pytest.mark.parametrize(
    ("net", "found"),
    soak_after(
        [
            (lambda: Block(), ["matmul_add", "matmul_add", "matmul_gelu_backward"]),
            (
                lambda: Block(bias=False, turned=True),
                ["matmul_add", "matmul_add", "matmul_gelu_backward"],
            ),
            (lambda: Others(), []),
        ]
    ),
)
def test_what_is_found_is_ours_and_the_gradients_stay(taken, net, found):
    torch.manual_seed(0)
    module, x = net(), torch.randn(3, 5, 8, requires_grad=True)
    ends = plain_and_compiled(module, x)
    assert sorted(taken) == sorted(found)
    for a, b in zip(*ends, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(
    ("net", "turned"), soak_after([(Residual, True), (Block, True), (Block, False)])
)
def test_a_sum_that_promotes_the_matmul_stays_wide(taken, net, turned):
    """Autocast's: 16-bit matmuls, added to a float32 residual stream."""
    torch.manual_seed(0)
    module, x = net(turned=turned), torch.randn(3, 5, 8, requires_grad=True)
    ends = plain_and_compiled(module, x, torch.autocast("cpu", dtype=torch.bfloat16))
    assert "matmul_add" not in taken
    for a, b in zip(*ends, strict=True):
        assert a.dtype == b.dtype == torch.float32
        assert (a - b).norm() <= 1e-2 * a.norm()


def test_sums_of_gradients_are_the_compilers(taken):
    """Two linears of one input: their gradients' sum is in the backward pass."""
    torch.manual_seed(0)
    one, two = nn.Linear(8, 8), nn.Linear(8, 8)
    x = torch.randn(5, 8, requires_grad=True)
    with every_pass_runs():
        made = torch.compile(lambda x: torch.tanh(one(x)) * two(x), options=pass_options())(x)
        made.sum().backward()
    assert taken == []
