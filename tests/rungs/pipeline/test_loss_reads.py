"""A loss that reads the module is refused in a pipeline; one that does not is trained."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from stepladder.errors import ModelError
from stepladder.train import climb
from tests.ranks import run as on_ranks

torch.set_num_threads(1)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.aux = nn.Linear(8, 8), None

    def forward(self, x):
        self.aux = x.square().mean()
        return x + torch.tanh(self.linear(x))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.entry, self.blocks = nn.Linear(8, 8), nn.ModuleList(Block() for _ in range(2))
        self.head, self.aux, self.smoothing = nn.Linear(8, 3), 0.0, 0.1

    def forward(self, x):
        x = self.entry(x)
        for block in self.blocks:
            x = block(x)
        self.aux = x.square().mean()
        return self.head(x)


def losses(module) -> dict:
    kept = list(module.parameters())

    def plus(term):
        return lambda outputs, targets: functional.cross_entropy(outputs, targets) + term()

    return {
        "penalty": plus(lambda: sum(p.square().sum() for p in module.parameters())),
        "parameters kept": plus(lambda: sum(p.square().sum() for p in kept)),
        "first block": plus(lambda: module.blocks[0].aux),
        "last block": plus(lambda: module.blocks[1].aux),
        "root": plus(lambda: module.aux),
        "another pass": plus(lambda: module(torch.zeros(1, 8)).mean()),
        "a setting": lambda outputs, targets: functional.cross_entropy(
            outputs, targets, label_smoothing=module.smoothing
        ),
    }


def attempt() -> dict[str, str]:
    found = {}
    for name in losses(Net()):
        torch.manual_seed(0)
        module = Net()
        draw = torch.randn(4, 8), torch.randint(0, 3, (4,))
        try:
            run = climb(
                module, loss=losses(module)[name], optimizer="sgd lr=0.1",
                plan="fp32 pipeline=2 micro=2", sample=draw, device="cpu",
            )  # fmt: skip
            run.predict([draw])  # no loss was looked at yet
            found[name] = f"{run.step(draw).loss:.5f}"
        except ModelError as problem:
            found[name] = str(problem)
    return found


def test_what_only_another_stage_knows_is_refused_before_the_first_step():
    one, other = on_ranks(attempt, 2, init=False)
    assert one == other
    torch.manual_seed(0)
    module = Net()
    inputs, targets = torch.randn(4, 8), torch.randint(0, 3, (4,))
    expected = functional.cross_entropy(module(inputs), targets, label_smoothing=0.1).item()
    assert float(one.pop("a setting")) == pytest.approx(expected, rel=1e-4)
    for name, message in one.items():
        assert message.startswith("loss: it reads "), f"{name}: {message}"
