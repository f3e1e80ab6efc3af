"""Matmuls in the compiler's graph become ours, and compute the same."""

import pytest
import torch
from torch import nn

from stepladder.kernels.graph import matmul_pass
from stepladder.kernels.graph.compile import pass_options

from .compiling import every_pass_runs


class Net(nn.Module):
    """With a bias and without, and a matmul whose operand is a slice."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 12), nn.Linear(4, 6, bias=False)

    def forward(self, x):
        return self.second(torch.tanh(self.first(x))[:, 4:8]).sum()


@pytest.fixture
def taken(monkeypatch):
    """Every matmul of a graph is worth it here; which were taken, by whether they had a bias."""
    seen = []

    def is_worth_it(node, left, bias):
        seen.append(bias is not None)
        return True

    monkeypatch.setattr(matmul_pass, "is_worth_it", is_worth_it)
    return seen


def gradients(net, x, call):
    net.zero_grad()
    call(x).backward()
    return [p.grad.clone() for p in net.parameters()]


def test_every_matmul_forward_and_backward_is_ours_and_the_gradients_stay(taken):
    torch.manual_seed(0)
    net, x = Net(), torch.randn(5, 8)
    plain = gradients(net, x, net)
    with every_pass_runs():
        compiled = torch.compile(net, options=pass_options())
        ours = gradients(net, x, compiled)
    assert len(taken) == 5  # two forward, two for weights, one for what lies between
    for a, b in zip(plain, ours, strict=True):
        torch.testing.assert_close(a, b)


def fake_matmul(rows, inner, columns, device="cuda", dtype=torch.bfloat16):
    """A graph of one matmul, traced without a device."""
    with torch._subclasses.FakeTensorMode():
        left = torch.empty(rows, inner, device=device, dtype=dtype)
        right = torch.empty(inner, columns, device=device, dtype=dtype)
        graph = torch.fx.Graph()
        a, b = graph.placeholder("a"), graph.placeholder("b")
        out = graph.call_function(torch.ops.aten.mm.default, (a, b))
        a.meta["val"], b.meta["val"] = left, right
        out.meta["val"] = torch.empty(rows, columns, device=device, dtype=dtype)
        graph.output(out)
    return graph, out


@pytest.mark.parametrize(
    "case, ours",
    [
        (((4096, 1024, 1024),), True),
        (((64, 64, 64),), False),  # too small to be worth tuning
        (((4096, 1024, 1024), "cpu"), False),
        (((4096, 1024, 1024), "cuda", torch.float32), False),
    ],
)
def test_only_large_matmuls_of_16_bits_on_a_gpu_are_tuned(case, ours):
    sizes, *rest = case
    graph, out = fake_matmul(*sizes, *rest)
    matmul_pass.MatmulPass()(graph)
    assert (out.target is torch.ops.stepladder.matmul.default) == ours
