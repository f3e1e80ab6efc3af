"""Submodules that the user put into evaluation mode stay there, whatever the run does between."""

import pytest
import torch
from torch import nn

from stepladder.train import climb
from tests.ranks import run as on_ranks

torch.set_num_threads(1)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.BatchNorm1d(8), nn.Linear(8, 8)

    def forward(self, x):
        return x + self.linear(torch.tanh(self.norm(x)))


class Frozen(nn.Module):
    """The first block's BatchNorm, and one beside the blocks, are in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        self.entry, self.norm = nn.Linear(8, 8), nn.BatchNorm1d(8)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(8, 3)
        for norm in (self.norm, self.blocks[0].norm):
            norm.eval()

    def forward(self, x):
        x = self.norm(self.entry(x))
        for block in self.blocks:
            x = block(x)
        return self.head(x)


MODES = {"norm": False, "blocks.0.norm": False, "blocks.1.norm": True, "": True}


def frozen(seed: int = 0) -> Frozen:
    torch.manual_seed(seed)
    module = Frozen()
    for norm in (module.norm, module.blocks[0].norm):
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
    return module


def batch():
    draw = torch.Generator().manual_seed(1)
    return torch.randn(8, 8, generator=draw), torch.randint(0, 3, (8,), generator=draw)


def modes(module) -> dict[str, bool]:
    return {name: module.get_submodule(name).training for name in MODES}


@pytest.mark.parametrize("plan", ["auto", "fp32", "fp32 recompute=blocks", "fp32 recompute=1GiB"])
def test_frozen_norms_stay_frozen_at_climb_step_and_evaluation(plan):
    module = frozen()
    statistics = module.norm.running_mean.clone()
    run = climb(module, loss="cross_entropy", plan=plan, sample=batch(), device="cpu")
    assert modes(module) == MODES
    run.step(batch())
    run.evaluate([batch()])
    assert modes(module) == MODES
    module.eval()  # a user's own evaluation, after which step trains again
    run.step(batch())
    assert modes(module) == MODES
    assert torch.equal(module.norm.running_mean, statistics)
    assert module.blocks[1].norm.num_batches_tracked == 2


def all_frozen() -> Frozen:
    """Micro-batches then have no statistics of their own."""
    module = frozen()
    module.blocks[1].norm.eval()
    return module


def piped():
    module = all_frozen()
    run = climb(
        module, loss="cross_entropy", optimizer="sgd lr=0.5", plan="fp32 pipeline=2 micro=4",
        sample=batch(), device="cpu",
    )  # fmt: skip
    losses = [run.step(batch()).loss for _ in range(2)]
    run.evaluate([batch()])
    losses.append(run.step(batch()).loss)
    own = [name for name, part in module.named_modules() if name in MODES and part is not None]
    return losses, {name: module.get_submodule(name).training for name in own}


def test_frozen_norms_stay_frozen_in_a_pipeline():
    plain = all_frozen()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.5)
    expected = []
    for _ in range(3):
        inputs, targets = batch()
        loss = nn.functional.cross_entropy(plain(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        expected.append(loss.item())
    for losses, found in on_ranks(piped, 2):
        assert losses == pytest.approx(expected, rel=1e-4)
        assert found == {name: not name.endswith("norm") for name in found}
