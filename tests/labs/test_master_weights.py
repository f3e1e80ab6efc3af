"""The lesson's mixed precision is autocast's to the last bit, and its claim holds."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from stepladder.labs.master_weights import MasterWeights, push

OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
}


def network() -> nn.Module:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4)
    )


def loss_on(step: int) -> Callable[[nn.Module], Tensor]:
    generator = torch.Generator().manual_seed(step)
    data = torch.randn(32, 16, generator=generator)

    def loss_of(module: nn.Module) -> Tensor:
        answer = module(data.to(next(module.parameters()).dtype))
        return (answer.float() - data[:, :4].sin()).square().mean()

    return loss_of


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("scale", [1.0, 2.0**10])
def test_every_bit_is_what_autocast_gives(name: str, scale: float) -> None:
    module = network()
    theirs = copy.deepcopy(module)
    ours = MasterWeights(module, OPTIMIZERS[name])
    optimizer = OPTIMIZERS[name](theirs.parameters())
    for step in range(20):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = loss_on(step)(theirs)
        (loss * scale).backward()
        for parameter in theirs.parameters():
            parameter.grad.mul_(1 / scale)
        optimizer.step()
        assert ours.step(loss_on(step), scale) == loss.item()
        for mine, other in zip(ours.master, theirs.parameters()):
            assert torch.equal(mine, other)


def test_the_working_copy_is_the_master_rounded() -> None:
    ours = MasterWeights(network(), OPTIMIZERS["sgd"])
    before = [working.clone() for working in ours.working.parameters()]
    ours.step(loss_on(0))
    pairs = list(zip(ours.master, ours.working.parameters()))
    assert all(master.dtype == torch.float32 for master, _ in pairs)
    assert all(torch.equal(working, master.half()) for master, working in pairs)
    assert not all(torch.equal(a, b) for a, b in zip(before, ours.working.parameters()))


def test_steps_too_small_for_fp16_add_up_in_the_master_only() -> None:
    def move(by: float) -> Callable[[nn.Module], Tensor]:
        return lambda module: -by * module.weight.float().sum()

    layer = nn.Linear(1, 1, bias=False)
    nn.init.ones_(layer.weight)
    narrow = copy.deepcopy(layer).half()
    ours = MasterWeights(layer, lambda parameters: torch.optim.SGD(parameters, lr=1.0))
    plain = torch.optim.SGD(narrow.parameters(), lr=1.0)
    for _ in range(1000):
        ours.step(move(1e-4))
        plain.zero_grad()
        move(1e-4)(narrow).backward()
        plain.step()
    assert narrow.weight.item() == 1.0
    assert ours.master[0].item() == pytest.approx(1.1, abs=1e-3)
    assert ours.working.weight.item() == pytest.approx(1.1, abs=2e-3)


def test_a_push_of_a_ten_thousandth_moves_nothing_without_a_master() -> None:
    assert push(1e-4, 1000, master=False) == 1.0
    assert push(1e-4, 1000, master=True) == pytest.approx(1.1, abs=1e-4)
