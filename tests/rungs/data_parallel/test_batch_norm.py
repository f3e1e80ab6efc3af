"""Batch statistics over ranks: the same training as on one device, buffers too."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from stepladder.train import climb
from tests.ranks import run as on_ranks

torch.set_num_threads(1)


class Acting(nn.BatchNorm2d):
    """A BatchNorm with a forward of its own, as timm has them."""

    def forward(self, x):
        made = functional.batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias, self.training, 0.2,
            self.eps,
        )  # fmt: skip
        return made.relu()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 6, 3)
        self.norm, self.acting = nn.BatchNorm2d(6), Acting(6)
        self.frozen = nn.BatchNorm2d(6).eval()
        self.flat = nn.Linear(6, 6)
        self.blocks = nn.ModuleList([nn.BatchNorm1d(6, momentum=None) for _ in range(2)])
        self.bare = nn.BatchNorm1d(6, affine=False, track_running_stats=False)
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        x = self.frozen(self.acting(self.norm(self.conv(x))))
        x = self.flat(x.mean((2, 3)))
        for block in self.blocks:
            x = x + torch.tanh(block(x))
        return self.head(self.bare(x) + x)


def net() -> Net:
    torch.manual_seed(0)
    made = Net()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return made


def batches(num: int = 3):
    draw = torch.Generator().manual_seed(1)
    return [
        (torch.randn(8, 2, 5, 5, generator=draw), torch.randint(0, 3, (8,), generator=draw))
        for _ in range(num)
    ]


def learn(plan: str):
    module = net()
    run = climb(module, loss="cross_entropy", optimizer="sgd lr=0.2", plan=plan, device="cpu")
    for batch in batches():
        run.step(batch, rows="global")
    whole = {
        name: value.full_tensor() if hasattr(value, "full_tensor") else value.detach()
        for name, value in (*module.named_parameters(), *module.named_buffers())
    }
    return run.because, whole


def learn_plainly():
    module = net()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.2)
    for inputs, targets in batches():
        optimizer.zero_grad()
        functional.cross_entropy(module(inputs), targets).backward()
        optimizer.step()
    return {
        name: value.detach()
        for name, value in (*module.named_parameters(), *module.named_buffers())
    }


def distance(found, expected) -> float:
    return max(
        ((found[name].float() - value.float()).norm() / value.float().norm().clamp(min=1e-3)).item()
        for name, value in expected.items()
    )


@pytest.mark.parametrize("plan", ["ddp", "zero1", "zero3", "zero3 recompute=blocks"])
def test_two_ranks_learn_what_one_device_does(plan):
    expected = learn_plainly()
    for because, found in on_ranks(learn, 2, f"fp32 {plan}", init=False):
        assert found.keys() == expected.keys()
        assert distance(found, expected) < 1e-4
        assert because == "BatchNorm statistics are combined over 2 ranks"


def test_local_statistics_are_a_choice_and_differ():
    for because, found in on_ranks(learn, 2, "fp32 ddp batchnorm=local", init=False):
        assert distance(found, learn_plainly()) > 1e-2
        assert "results depend on the 2 ranks" in because


def test_micro_batches_are_said_to_change_batch_statistics():
    because, found = learn("fp32 micro=4")
    assert because.endswith("so results depend on the micro-batch")
    assert distance(found, learn_plainly()) > 1e-2
    assert learn("fp32")[0] == ""
