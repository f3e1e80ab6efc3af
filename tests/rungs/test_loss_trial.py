"""The trial of a loss: no rows twice with the same parameters, and noise that is one number."""

from collections import Counter

import pytest
import torch
from torch import nn
from torch.nn import functional

from stepladder.data import Batch
from stepladder.loss import Weighting
from stepladder.rungs.trial_rows import contents
from stepladder.train import climb

PASSES: Counter = Counter()  # a trial restores what a module counts


class Scored(nn.Module):
    """A model that returns its own loss, with or without noise."""

    def __init__(self, spread: float = 0.0) -> None:
        super().__init__()
        self.linear, self.spread = nn.Linear(4, 3), spread

    def forward(self, x, labels):
        key = tuple(tensor.detach().numpy().tobytes() for tensor in (self.linear.weight, x, labels))
        PASSES[key] += not torch.is_grad_enabled()
        noise = self.spread * torch.randn_like(x) if self.spread else 0
        total = functional.cross_entropy(self.linear(x + noise), labels, reduction="sum")
        return {"loss": total / len(labels)}


def tried(module):
    torch.manual_seed(0)
    run = climb(module, optimizer="sgd lr=0.1", plan="fp32 micro=2")
    labels = torch.tensor([0, 1, 2, -100, 1, 0])
    run.step({"x": torch.randn(6, 4), "labels": labels}).read()
    return run.climbed.forward_backward.loss.weighting


def test_rows_are_computed_once_with_the_same_parameters():
    PASSES.clear()
    assert tried(Scored()) == Weighting("rows")
    again = [count for count in PASSES.values() if count > 1]
    # Only the rows as they are: with each of two draws of parameters twice, to see whether anything
    # is drawn, and once to see what the loss calls; and once a draw without its noise.
    assert sorted(again) == [2, 3, 3] and PASSES.total() > 40


def test_a_model_that_draws_noise_is_tried_without_its_luck():
    noisy = Scored(spread=1.0)
    assert tried(noisy) == Weighting("rows")
    assert noisy(torch.ones(1, 4), torch.tensor([0])) != noisy(torch.ones(1, 4), torch.tensor([0]))


@pytest.mark.parametrize(
    "other",
    [
        {"x": torch.tensor([[1.0], [3.0]])},
        {"x": torch.tensor([[1.0], [2.0]], dtype=torch.float64)},
        {"y": torch.tensor([[1.0], [2.0]])},
        {"x": torch.tensor([[1.0], [2.0]]), "names": ["a", "b"]},
    ],
)
def test_only_the_same_numbers_are_the_same_rows(other):
    first = Batch.of({"x": torch.tensor([[1.0], [2.0]])}, position=0, size=2)
    assert contents(first) == contents(first.copy())
    assert contents(Batch.of(other, position=0, size=2)) != contents(first)
