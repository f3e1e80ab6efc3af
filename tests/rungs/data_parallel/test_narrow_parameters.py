"""Parameters that are gathered in 16 bits, in a module whose stream is in float32."""

import pytest
import torch
from torch import nn

from stepladder.errors import ModelError
from stepladder.train import climb
from tests.ranks import run


class Tabled(nn.Module):
    """Adds a table in float32 to what it computes, and normalises it."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.register_buffer("table", torch.randn(5, 4), persistent=False)
        self.norm, self.groups = nn.LayerNorm(4), nn.GroupNorm(2, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, tokens):
        x = self.norm(self.embed(tokens) + self.table)
        return self.head(self.groups((x + self.table).mT).mT).mean(1)


def losses(plan):
    torch.manual_seed(0)
    batch = torch.arange(20).view(4, 5) % 7, torch.tensor([0, 1, 2, 0])
    module = Tabled()
    taken = climb(module, loss="cross_entropy", optimizer="sgd lr=0.1", plan=plan, device="cpu")
    return [taken.step(batch, rows="global").loss for _ in range(2)]


def test_norms_take_a_stream_in_float32():
    for sharded in run(losses, 2, "bf16 zero3", init=False):
        assert sharded == pytest.approx(losses("fp32"), rel=0.03)


def summed(plan):
    torch.manual_seed(0)
    batch = torch.arange(20).view(4, 5) % 7, torch.tensor([0, 1, 2, 0])
    loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 3.0, 0.5]), reduction="sum")
    taken = climb(Tabled(), loss=loss, optimizer="sgd lr=0.01", plan=plan, device="cpu")
    found = [taken.step(batch, rows="global").loss for _ in range(2)]
    return found, [line for line in taken.events if "could not be tried" in line]


def test_a_loss_in_float32_is_tried_on_outputs_in_16_bits():
    expected, _ = summed("fp32")
    for found, untried in run(summed, 2, "bf16 zero3", init=False):
        assert found == pytest.approx(expected, rel=0.03) and not untried


def test_a_shared_table_that_shortens_its_rows_is_not_trained_in_parts():
    module = nn.Sequential(nn.Embedding(7, 4, max_norm=0.5), nn.Linear(4, 7, bias=False))
    module[1].weight = module[0].weight
    batch = torch.arange(4), torch.arange(4)
    with pytest.raises(ModelError, match="0: max_norm=0.5 shortens rows .* another part reads it"):
        climb(module, loss="cross_entropy", plan="fp32 micro=2", device="cpu")
    whole = climb(module, loss="cross_entropy", plan="fp32", device="cpu")
    assert whole.step(batch).loss > 0
