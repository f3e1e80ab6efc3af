"""The plain loop trains as torch code written by hand does, and shares none with the engine."""

import ast
import copy
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from stepladder.plan import Optimizer, Precision
from stepladder.verify.plain import plain_loop, plain_muon
from stepladder.verify.plain.plain_loop import PlainLoop

X, Y = torch.randn(8, 4, generator=torch.Generator().manual_seed(1)), torch.arange(8) % 3


def net():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 3))
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.5)
    return module


def loop(module, precision="fp32", optimizer="sgd lr=0.1", loss="cross_entropy", **how):
    how = {"keep": (), **how}
    return PlainLoop(module, loss, Precision.parse(precision), Optimizer.parse(optimizer), **how)


def test_it_imports_torch_and_plans_alone():
    trees = [ast.parse(Path(file.__file__).read_text()) for file in (plain_loop, plain_muon)]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    names = {n.module for n in nodes if isinstance(n, ast.ImportFrom) and not n.level}
    names |= {a.name for n in nodes if isinstance(n, ast.Import) for a in n.names}
    assert {n for n in names if n.startswith("stepladder")} == {"stepladder.plan"}
    relative = {n.module for n in nodes if isinstance(n, ast.ImportFrom) and n.level}
    assert relative == {"plain_muon"}


@pytest.mark.parametrize(
    ("text", "make"),
    [
        ("sgd lr=0.1", lambda p: torch.optim.SGD(p, lr=0.1)),
        ("momentum lr=0.1 wd=0.1", lambda p: torch.optim.SGD(
            p, lr=0.1, momentum=0.9, weight_decay=0.1)),
        ("adamw lr=0.01 wd=0.1 betas=0.8,0.9", lambda p: torch.optim.AdamW(
            p, lr=0.01, weight_decay=0.1, betas=(0.8, 0.9))),
        ("adam lr=0.01 eps=1e-3", lambda p: torch.optim.Adam(
            p, lr=0.01, eps=1e-3, betas=(0.9, 0.95))),
    ],
)  # fmt: skip
def test_optimizers_are_torchs(text, make):
    module, other = net(), net()
    plain, optimizer = loop(module, optimizer=text), make(other.parameters())
    for _ in range(3):
        found = plain.step(X, Y)
        loss = functional.cross_entropy(other(X), Y)
        loss.backward()
        norm = torch.cat([p.grad.flatten() for p in other.parameters()]).norm()
        assert (found.loss, found.norm) == pytest.approx((loss.item(), norm.item()), rel=1e-6)
        optimizer.step()
        optimizer.zero_grad()
    for one, two in zip(module.parameters(), other.parameters()):
        torch.testing.assert_close(one, two)


def test_groups_depth_and_clipping():
    module, other = net(), net()
    plain = loop(module, optimizer="sgd lr=0.1 clip=0.01 layers=0.5 group=*.bias:lr=x3",
                 blocks=["0", "1", "2", "3"])  # fmt: skip
    found = plain.step(X, Y)
    functional.cross_entropy(other(X), Y).backward()
    assert found.norm > 0.01
    for (name, p), q in zip(other.named_parameters(), module.parameters()):
        rate = 0.1 * 0.5 ** (4 - int(name[0])) * (3 if name.endswith("bias") else 1)
        torch.testing.assert_close(q, p - rate * 0.01 / found.norm * p.grad, rtol=1e-4, atol=1e-7)


def test_bf16_is_autocast_and_kept_modules_compute_in_float32():
    module, other = net(), net()
    found = loop(module, "bf16", keep=("3",)).step(X, Y)
    with torch.autocast("cpu", torch.bfloat16):
        hidden = other[:3](X)
    loss = functional.cross_entropy(functional.linear(hidden.float(), *other[3].parameters()), Y)
    assert found.loss == loss.item()
    assert {p.dtype for p in module.parameters()} == {torch.float32}


def test_masters_keep_the_digits_that_stored_parameters_lose():
    module, wide = net(), net()
    plain = loop(module, "bf16-master", optimizer="adam lr=1e-5")
    before = copy.deepcopy(module.state_dict())
    plain.step(X, Y)
    for (name, p), original in zip(module.named_parameters(), wide.parameters()):
        assert p.dtype == torch.bfloat16
        torch.testing.assert_close(plain.updated[name], original, atol=2e-5, rtol=0)
        assert not torch.equal(plain.updated[name], before[name].float())


def test_fp16_leaves_out_a_step_that_overflows():
    module = nn.Linear(4, 3)
    plain, before = loop(module, "fp16"), copy.deepcopy(module.state_dict())
    found = plain.step(X * 1e3, Y)  # times 2^16 is beyond fp16
    assert not torch.isfinite(torch.tensor(found.norm))
    assert all(torch.equal(before[name], p) for name, p in module.named_parameters())


class Own(nn.Module):
    def __init__(self, answer):
        super().__init__()
        self.inner, self.answer = net(), answer

    def forward(self, x, labels):
        loss = functional.cross_entropy(self.inner(x), labels)
        return {"loss": loss} if self.answer == "dict" else loss


@pytest.mark.parametrize("answer", ["dict", "number"])
def test_a_modules_own_loss_is_taken(answer):
    found = loop(Own(answer), loss=None).step({"x": X, "labels": Y}, None)
    assert found.loss == functional.cross_entropy(net()(X), Y).item()


def test_a_loss_with_parameters_is_trained_with_the_module():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(2.0))

        def forward(self, outputs, targets):
            return functional.cross_entropy(outputs * self.scale, targets)

    loss = Scaled()
    found = loop(net(), loss=loss).step(X, Y)
    assert "loss.scale" in found.norms and loss.scale.item() != 2.0


@pytest.mark.parametrize("classes_last", [True, None])
def test_named_losses_find_the_classes(classes_last):
    logits, targets = torch.randn(2, 3, 3), torch.randint(0, 3, (2, 3))
    found = loop(net(), classes_last=classes_last).cross_entropy(logits, targets)
    second = logits.transpose(1, 2) if classes_last else logits
    torch.testing.assert_close(found, functional.cross_entropy(second, targets))


def test_squared_errors_are_not_broadcast():
    module = nn.Linear(4, 1)
    found = loop(module, loss="squared_error", optimizer="sgd lr=0").step(X, Y.float())
    assert found.loss == pytest.approx((module(X)[:, 0] - Y).square().mean().item())


def test_parts_in_evaluation_stay_there_unless_all_of_the_module_is():
    module = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3).eval())
    loop(module)
    assert not module[1].training
    loop(module.eval())
    assert module[1].training
