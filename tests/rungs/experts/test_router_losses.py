"""The losses of a mixture's router are of the whole batch, whoever computes which part of it."""

from functools import partial

import pytest
import torch
from torch.distributed.tensor import DTensor
from torch.nn import functional as F

from stepladder.errors import StepladderError
from stepladder.train import climb
from tests.ranks import run

from .small_mixture import ROWS, batch, mixture

RATE, STEPS = 0.3, 2
SHAPE = "llama:layers=2,hidden=16,heads=2,vocab=32,ffn=16,experts=4,active=2,sequence=8"


model = partial(mixture, SHAPE)


def plain(rows=ROWS, **options):
    """SGD by hand; nothing here is stepladder's but the module."""
    module = model(**options)
    for step in range(STEPS):
        inputs, targets = (one[:rows] for one in batch(step))
        F.cross_entropy(module(inputs).flatten(0, 1), targets.flatten()).backward()
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.sub_(RATE * parameter.grad)
                parameter.grad = None
    return dict(module.named_parameters())


def planned(plan, rows=ROWS, **options):
    torch.set_num_threads(1)
    trained = climb(
        model(**options), loss="cross_entropy", optimizer=f"sgd lr={RATE}", plan=plan, device="cpu"
    )
    for step in range(STEPS):
        trained.step(tuple(one[:rows] for one in batch(step)), rows="global").read()
    found = {}
    for name, parameter in trained.module.named_parameters():
        whole = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
        found[name.removeprefix("module.")] = whole.detach().clone()
    return found


def assert_same(found, expected):
    assert found.keys() <= expected.keys() and found
    for name, value in found.items():
        torch.testing.assert_close(value, expected[name], rtol=1e-4, atol=2e-6, msg=name)


@pytest.mark.parametrize(
    "plan", ["fp32", "fp32 micro=2", "fp32 micro=3", "fp32 recompute=blocks micro=3"]
)
def test_micro_batches_learn_what_the_whole_batch_does(plan):
    assert_same(planned(plan), plain())


@pytest.mark.parametrize(
    "plan",
    [
        "fp32 ddp", "fp32 ddp micro=2", "fp32 zero1", "fp32 zero3", "fp32 zero3 micro=2",
        "fp32 zero3 recompute=blocks", "fp32 pipeline=2 micro=2", "fp32 context=2",
    ],
)  # fmt: skip
def test_ranks_learn_what_one_device_does(plan):
    expected = plain()
    for found in run(planned, 2, plan):
        assert_same(found, expected)


@pytest.mark.soak
@pytest.mark.parametrize(
    "plan", ["fp32 compile=on micro=4", "fp32 compile=on", "fp32 compile=on recompute=blocks"]
)
def test_compiled_it_learns_the_same(plan):
    assert_same(planned(plan), plain())


def test_a_rank_that_repeats_a_micro_batch_counts_it_once():
    expected = plain(rows=5)
    for found in run(planned, 2, "fp32 ddp micro=2", 5):
        assert_same(found, expected)


def test_evaluation_needs_no_counts():
    trained = climb(model(), loss="cross_entropy", plan="fp32 micro=2", device="cpu")
    before = trained.evaluate([batch(0)])
    assert before == trained.evaluate([batch(0)])


def test_slices_with_router_losses_are_refused():
    with pytest.raises(StepladderError) as caught:
        climb(model(), loss="cross_entropy", plan="fp32 exact=ranks", device="cpu")
    assert str(caught.value).splitlines()[0] == (
        "'blocks.0.mlp': has losses of its router over the whole batch, which slices do not see. "
        "Build the model with balance=0 and z_loss=0, or leave exact=ranks out."
    )
