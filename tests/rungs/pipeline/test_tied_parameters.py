"""What belongs to no stage's parameters is saved by the stage whose code changes it."""

import pytest
import torch
from torch import nn

from stepladder.train import climb
from tests.ranks import run


class Counted(nn.Module):
    """A buffer that each training forward writes."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.tensor(0))
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x):
        if self.training:
            self.calls += 1
            self.mean.lerp_(x.detach().mean(0), 0.5)
        return x


class Remembering(nn.Module):
    """Extra state, and no tensor."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += self.training
        return x

    def get_extra_state(self):
        return {"calls": self.calls}

    def set_extra_state(self, state):
        self.calls = state["calls"]


class Model(nn.Module):
    """Blocks with stateful parts without parameters before, after, and in the module itself."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.before = Counted()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(4))
        self.after, self.norm = Counted(), nn.BatchNorm1d(8, affine=False)
        self.remembering = Remembering()
        self.head = nn.Linear(8, 3)
        self.register_buffer("seen", torch.zeros(8))

    def forward(self, x):
        x = self.before(x)
        for block in self.blocks:
            x = block(x)
        if self.training:
            self.seen += x.detach().sum(0)
        return self.head(self.norm(self.remembering(self.after(x))))


def batches():
    draw = torch.Generator().manual_seed(1)
    return [(torch.randn(6, 8, generator=draw), torch.tensor([0, 1, 2] * 2)) for _ in range(3)]


def learned(plan, folder):
    taken = climb(
        Model(), loss="cross_entropy", optimizer="sgd lr=0.1", plan=plan, device="cpu",
        sample=batches()[0],
    )  # fmt: skip
    for batch in batches():
        taken.step(batch, rows="global").read()
    taken.save(folder)
    taken.world.close()


@pytest.mark.parametrize(
    "schedule", ["1f1b", pytest.param("interleaved:2", marks=pytest.mark.soak)]
)
def test_state_without_parameters_is_what_one_device_has(schedule, tmp_path):
    folder = str(tmp_path / "pipeline")
    run(learned, 2, f"fp32 pipeline=2 schedule={schedule} micro=3", folder, init=False)
    resumed = climb(Model(), loss="cross_entropy", optimizer="sgd lr=0.1", plan="fp32 micro=3")
    resumed.resume(folder)
    plain = climb(Model(), loss="cross_entropy", optimizer="sgd lr=0.1", plan="fp32 micro=3")
    for batch in batches():
        plain.step(batch).read()
    found, wanted = resumed.module.state_dict(), plain.module.state_dict()
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        if name == "remembering._extra_state":
            assert found[name] == value == {"calls": 3}
        else:
            assert torch.allclose(found[name], value, atol=1e-6), name
