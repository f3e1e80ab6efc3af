"""Selective checkpointing of blocks that write to the results that it saves."""

import copy

import pytest
import torch
from torch import Tensor, nn

from stepladder.rungs.memory.saved_results import are_exposed
from stepladder.train import climb


class Activated(nn.Module):
    """Writes to the result of its first layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.ReLU(inplace=True), nn.Linear(8, 6))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x)


class Recurrent(nn.Module):
    """torch's GRU writes to views of a matmul that do not tell it."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRU(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.cell(x[None])[0][0]


class Returned(nn.Module):
    """Returns a matmul's result, and the network writes to it."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(6, 8), nn.Linear(8, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(torch.tanh(self.up(x)))


class Residual(Returned):
    def forward(self, x: Tensor) -> Tensor:
        return x + super().forward(x)


class Net(nn.Module):
    def __init__(self, block: type[nn.Module]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(block() for _ in range(2))
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
            x.mul_(0.5)
        return self.head(x)


def trained(module: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
    for x, y in batches:
        module.zero_grad()
        nn.functional.cross_entropy(module(x), y).backward()
        with torch.no_grad():
            for parameter in module.parameters():
                parameter -= 0.5 * parameter.grad
    return list(module.parameters())


@pytest.mark.parametrize("block", [Activated, Recurrent, Returned, Residual])
def test_gradients_are_those_of_a_plain_loop(block):
    torch.manual_seed(0)
    module = Net(block)
    batches = [(torch.randn(4, 6), torch.randint(0, 3, (4,))) for _ in range(2)]
    wanted = trained(copy.deepcopy(module), batches)
    plan = "fp32 recompute=selective micro=2"
    run = climb(module, loss=nn.functional.cross_entropy, optimizer="sgd lr=0.5", plan=plan,
                device="cpu")  # fmt: skip
    for batch in batches:
        run.step(batch)
    for parameter, one in zip(module.parameters(), wanted):
        torch.testing.assert_close(parameter, one, rtol=1e-5, atol=1e-6)
    assert are_exposed(module.blocks[0]) == (block is not Residual)
