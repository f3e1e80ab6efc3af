"""Fused kernels on ranks that hold whole copies: the same training as on one rank without them."""

import pytest
import torch
from torch import nn

import stepladder as sl
from stepladder.data import IGNORED
from tests.ranks import run

VOCABULARY = 32768  # from here on the head is fused


class Language(nn.Module):
    """A foreign module: an embedding, a layer, and a head of many classes."""

    def __init__(self):
        super().__init__()
        self.embed, self.inner = nn.Embedding(VOCABULARY, 8), nn.Linear(8, 8)
        self.head = nn.Linear(8, VOCABULARY, bias=False)

    def forward(self, tokens):
        return self.head(torch.tanh(self.inner(self.embed(tokens))))


def train(plan, optimizer):
    torch.manual_seed(3)
    module = Language()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn_like(parameter))
    climbed = sl.climb(module, loss="cross_entropy", optimizer=optimizer, plan=plan, device="cpu")
    reports = []
    for step in range(3):
        draw = torch.Generator().manual_seed(step)
        tokens = torch.randint(0, VOCABULARY, (4, 6), generator=draw)
        targets = tokens.roll(-1, 1)
        targets[0, step:] = IGNORED  # ranks have unequally many
        reports.append(climbed.step((tokens, targets), rows="global").read())
    weights = [parameter.detach().sum().item() for parameter in climbed.module.parameters()]
    fused = any("cross-entropy on:" in event for event in climbed.events)
    return [one.loss for one in reports], [one.grad_norm for one in reports], weights, fused


@pytest.mark.parametrize("optimizer", ["sgd lr=0.5", "adamw lr=1e-3 clip=1"])
@pytest.mark.parametrize("layout", ["ddp replicate=2", "zero1 shard=2"])
def test_ranks_with_whole_copies_train_as_one_without_kernels(layout, optimizer):
    losses, norms, weights, _ = train("fp32", optimizer)
    ranks = run(train, 2, f"fp32 {layout} kernels=on", optimizer)
    assert ranks[0][3], "nothing was fused"
    for found in ranks:
        assert found[0] == pytest.approx(losses, rel=1e-5)
        assert found[1] == pytest.approx(norms, rel=1e-4)
        assert found[2] == pytest.approx(weights, rel=1e-3, abs=1e-2)
