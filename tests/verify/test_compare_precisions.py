"""A precision that trains the same is told from one that does not."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from stepladder.errors import NonFinite
from stepladder.plan import BF16, FP32, Precision
from stepladder.plan.precision import FP16
from stepladder.rungs.precision.precision import autocast_context, precision
from stepladder.verify.compare_precisions import Trained, compare, verdict

CPU = torch.device("cpu")
ROUNDED_AWAY = Precision("nothing", "float32", "bfloat16", compute="bf16", reduce="float32")


def train(chosen: Precision) -> Trained:
    """A small regression; the planted precision is one whose gradients round to nothing."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
    precision(model, chosen, (), CPU)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(60):
        optimizer.zero_grad()
        loss = loss_on(model, chosen, step)
        loss.backward()
        if chosen is ROUNDED_AWAY:
            for parameter in model.parameters():
                parameter.grad.zero_()
        optimizer.step()
        losses.append(loss.item())
    return Trained(loss_on(model, chosen, seed=1000).item(), tuple(losses))


def loss_on(model: nn.Module, chosen: Precision, seed: int) -> torch.Tensor:
    data = torch.randn(256, 8, generator=torch.Generator().manual_seed(seed))
    with autocast_context(chosen, CPU):
        answer = model(data)
    return (answer.float() - data[:, :2].sin().sum(1, keepdim=True)).square().mean() + 0.1


@pytest.mark.parametrize("chosen", [BF16, FP16], ids=str)
def test_a_precision_that_trains_the_same_is_fine(chosen: Precision) -> None:
    comparison = compare(train, FP32, chosen)
    assert comparison.verdict.word == "fine"
    assert not comparison.verdict.failed
    assert comparison.parted_at is None
    assert comparison.runs[0].losses != comparison.runs[1].losses
    assert str(comparison).startswith(f"{chosen} against fp32: validation loss ")


def test_a_precision_whose_gradients_round_to_nothing_is_bad() -> None:
    comparison = compare(train, FP32, ROUNDED_AWAY)
    assert comparison.verdict.failed
    assert comparison.verdict.difference > 0.05
    assert 0 < comparison.parted_at < 20
    assert str(comparison).endswith("over 5%, it does not train the same.")


@pytest.mark.parametrize(
    ("other", "word", "sentence"),
    [
        (2.0, "fine", "validation loss 2.0000, equal to 2.0000; under 1%, it trains the same."),
        (2.019, "fine", "0.95% above 2.0000; under 1%"),
        (2.021, "look", "1.05% above 2.0000; look at the curves, or train longer."),
        (1.94, "look", "validation loss 1.9400, 3.00% below 2.0000"),
        (2.099, "look", "4.95% above"),
        (2.101, "bad", "5.05% above 2.0000; over 5%, it does not train the same."),
        (math.nan, "bad", "validation loss nan: it does not train."),
        (math.inf, "bad", "validation loss inf: it does not train."),
    ],
)
def test_the_verdict_follows_the_difference(other: float, word: str, sentence: str) -> None:
    given_verdict = verdict(2.0, other)
    assert given_verdict.word == word
    assert given_verdict.failed is (word == "bad")
    assert sentence in given_verdict.sentence


@given(st.floats(1e-3, 1e3), st.floats(-0.2, 0.2))
def test_the_verdict_does_not_depend_on_the_size_of_the_loss(loss: float, gap: float) -> None:
    assert verdict(loss, loss * (1 + gap)).difference == pytest.approx(gap, abs=1e-12)
    assert verdict(-loss, -loss * (1 - gap)).difference == pytest.approx(gap, abs=1e-12)


def test_a_loss_of_zero_is_matched_by_zero_only() -> None:
    assert verdict(0.0, 0.0).word == "fine"
    assert verdict(0.0, 1e-6).word == "bad"


def test_a_reference_that_did_not_train_judges_nobody() -> None:
    with pytest.raises(NonFinite) as caught:
        verdict(math.nan, 1.0)
    assert str(caught.value) == (
        "precision: the reference run ended with a validation loss of nan. "
        "Make it train first: a lower learning rate, or clipped gradients."
    )


def test_a_run_that_breaks_down_parts_where_it_breaks_down() -> None:
    runs = {FP32: Trained(1.0, (3.0, 2.0, 1.0)), FP16: Trained(1.0, (3.0, 2.01, math.nan))}
    assert compare(runs.__getitem__, FP32, FP16).parted_at == 2
