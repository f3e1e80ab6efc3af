"""GELU between two linears is found in a module's graph, and nothing else is taken for it."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from stepladder.kernels.graph import gelu_pass

OURS = torch.ops.stepladder.linear_gelu.default


class Mlp(nn.Module):
    def __init__(self, act, up_bias=True):
        super().__init__()
        self.up, self.down, self.act = nn.Linear(8, 12, bias=up_bias), nn.Linear(12, 6), act

    def forward(self, x):
        return self.down(self.act(self.up(x))).square().sum()


class Last(Mlp):
    """No linear follows, so no matmul computes the gradient of GELU's output."""

    def forward(self, x):
        return self.act(self.up(x)).square().sum() + self.down(x[0, :1].expand(12)).sum()


class Seen(Mlp):
    """What GELU makes is looked at by another as well."""

    def forward(self, x):
        inner = self.act(self.up(x))
        return self.down(inner).square().sum() + inner.sum()


def tanh(x):
    return functional.gelu(x, approximate="tanh")


@pytest.fixture
def taken(monkeypatch):
    """Every size is_worth_it here; what was found."""
    seen = []
    monkeypatch.setattr(gelu_pass, "is_worth_it", lambda *found: not seen.append(found))
    return seen


@pytest.mark.parametrize(
    ("net", "found"),
    [
        (lambda: Mlp(tanh), 1),
        (lambda: Mlp(nn.GELU("tanh")), 1),
        (lambda: Mlp(functional.gelu), 0),  # by erf: other numbers
        (lambda: Mlp(torch.tanh), 0),
        (lambda: Mlp(tanh, up_bias=False), 0),
        (lambda: Seen(tanh), 0),
        (lambda: Last(tanh), 0),
    ],
)
def test_what_is_found_is_ours_and_the_values_stay(taken, net, found):
    """By the graph alone: with its gradient it is compiled in test_epilogue_pass."""
    torch.manual_seed(0)
    module, x = net(), torch.randn(5, 8)
    ours = []

    def look(captured, _):
        gelu_pass.GeluPass()(captured.graph)
        captured.graph.lint()
        captured.recompile()
        ours.extend(node for node in captured.graph.nodes if node.target is OURS)
        return captured.forward

    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(module, backend=look, fullgraph=True)(x), module(x))
    assert len(taken) == len(ours) == found


def node(graph, name, *shape, device="cuda", dtype=torch.bfloat16):
    made = graph.placeholder(name)
    made.meta["example_value"] = torch.empty(*shape, device=device, dtype=dtype)
    return made


@pytest.mark.parametrize(
    ("rows", "options", "ours"),
    [
        (8192, {}, True),
        (64, {}, False),  # too small to be worth tuning
        (8192, {"device": "cpu"}, False),
        (8192, {"dtype": torch.float32}, False),
    ],
)
def test_only_large_ones_of_16_bits_on_a_gpu_are_taken(rows, options, ours):
    with torch._subclasses.FakeTensorMode():
        graph = torch.fx.Graph()
        x, up = (
            node(graph, n, *s, **options) for n, s in (("x", (rows, 768)), ("up", (3072, 768)))
        )
        assert gelu_pass.is_worth_it(x, up) == ours
