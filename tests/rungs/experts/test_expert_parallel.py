"""Experts on several ranks learn what one device learns."""

from functools import partial

import pytest
import torch
from torch.distributed.tensor import DTensor
from torch.nn import functional as F

from stepladder.errors import StepladderError
from stepladder.model import build
from stepladder.train import climb
from tests.ranks import run
from tests.soak import soak_after

from .small_mixture import batch, mixture

STEPS = 3
SHAPE = (
    "llama:layers=2,hidden=16,heads=2,vocab=32,ffn=16,experts=8,active=2,shared_ffn=8,sequence=8"
)


model = partial(mixture, SHAPE)


def plain(optimizer="sgd", **options):
    """The whole batch on one device by torch alone."""
    module = model(**options)
    kinds = {
        "sgd": lambda given: torch.optim.SGD(given, lr=0.3),
        "adamw": lambda given: torch.optim.AdamW(
            given, lr=0.01, betas=(0.9, 0.95), weight_decay=0.1
        ),
    }
    made, losses = kinds[optimizer](module.parameters()), []
    for step in range(STEPS):
        inputs, targets = batch(step)
        loss = F.cross_entropy(module(inputs).flatten(0, 1), targets.flatten())
        loss.backward()
        made.step()
        made.zero_grad()
        losses.append(loss.item())
    return dict(module.named_parameters()), losses


WORDS = {"sgd": "sgd lr=0.3", "adamw": "adamw lr=0.01 wd=0.1"}


def start_with_one_thread():
    torch.set_num_threads(1)


def gather(module):
    """Every parameter, whole, under its logical name."""
    found = {}
    for name, parameter in module.named_parameters():
        whole = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
        found[name.removeprefix("module.")] = whole.detach().clone()
    return found


def planned(plan, optimizer="sgd", **options):
    start_with_one_thread()
    trained = climb(
        model(**options), loss="cross_entropy", optimizer=WORDS[optimizer], plan=plan, device="cpu"
    )
    losses = [trained.step(batch(step), rows="global").loss for step in range(STEPS)]
    return gather(trained.module), losses


def assert_same(result, expected, rtol=1e-4, atol=3e-6):
    found, losses = result
    values, right = expected
    assert losses == pytest.approx(right, rel=1e-5)
    assert found and found.keys() <= values.keys()
    for name, value in found.items():
        torch.testing.assert_close(value, values[name], rtol=rtol, atol=atol, msg=name)


GATE = [
    (2, "fp32 experts=2 micro=1"),
    (2, "fp32 experts=2 recompute=blocks"),
    (4, "fp32 ddp experts=2 micro=1"),
    (4, "fp32 zero1 experts=2"),
    (4, "fp32 zero2 experts=2"),
    (4, "fp32 zero3 experts=2"),
    (4, "fp32 hsdp shard=1 replicate=2 experts=2"),
    (4, "fp32 experts=2 context=2"),
    (4, "fp32 experts=2 pipeline=2 micro=2"),
    (4, "fp32 experts=2 tensor=2"),
    (4, "fp32 zero3 experts=2 tensor=2"),
]
SOAK = [
    (2, "fp32 experts=2"),
    (2, "fp32 zero1 experts=2"),
    (2, "fp32 zero2 experts=2"),
    (2, "fp32 zero3 experts=2"),
    (4, "fp32 experts=4"),
    (4, "fp32 ddp experts=2"),
    (8, "fp32 experts=8"),
    (8, "fp32 zero3 shard=2 experts=2 context=2"),
    (8, "fp32 zero2 shard=2 experts=2 pipeline=2 micro=1"),
    (8, "fp32 hsdp shard=2 replicate=2 experts=2"),
    (8, "fp32 experts=2 replicate=2 context=2"),
    (8, "fp32 zero1 shard=2 experts=2 tensor=2"),
    (8, "fp32 ddp experts=2 tensor=2"),
    (8, "fp32 experts=2 tensor=2 pipeline=2 micro=2"),
]


@pytest.mark.parametrize(("ranks", "plan"), soak_after([*GATE, *SOAK], gate=len(GATE)))
def test_ranks_learn_what_one_device_does(ranks, plan):
    expected = plain()
    for result in run(planned, ranks, plan):
        assert_same(result, expected)


@pytest.mark.parametrize("plan", ["fp32 experts=2", "fp32 zero1 shard=2 experts=2"])
def test_with_adamw_too(plan):
    expected = plain("adamw")
    for result in run(planned, 4 if "shard" in plan else 2, plan, "adamw"):
        assert_same(result, expected, rtol=1e-3, atol=1e-5)


def test_capacity_drops_the_same_tokens_wherever_experts_are():
    expected = plain(capacity=0.6)
    assert plain()[1] != expected[1]
    for result in run(with_capacity, 2, "fp32 experts=2"):
        assert_same(result, expected)


def with_capacity(plan):
    return planned(plan, capacity=0.6)


def shapes(plan):
    trained = climb(model(), loss="cross_entropy", plan=plan, device="cpu")
    mine = trained.module.blocks[0].mlp.experts.down.to_local()
    return tuple(mine.shape)


def test_a_rank_holds_its_experts_and_no_others():
    assert run(shapes, 2, "fp32 experts=2") == [(4, 16, 16)] * 2
    assert run(shapes, 4, "fp32 zero3 shard=2 experts=2") == [(2, 16, 16)] * 4


def refusal(plan, name=""):
    made = build(name) if name else model()
    try:
        climb(made, loss="cross_entropy", plan=plan, device="cpu")
    except StepladderError as refused:
        return str(refused).splitlines()[0]
    return "nothing was refused"


REFUSED = [
    (
        2, "fp32 experts=2", "llama-tiny",
        "Llama: has no mixture whose experts 2 ranks could hold. Leave experts out, or hold "
        "them in a list named experts, or in tensors with an expert a row, as transformers does.",
    ),
    (
        3, "fp32 experts=3", "",
        "layout.experts: 3 ways cannot hold the 8 experts of 'blocks.0.mlp' evenly. "
        "Use 1, 2, 4 or 8.",
    ),
    (
        2, "fp32 experts=2 exact=ranks", "",
        "exact: experts=2 cuts the sums inside a layer or a sequence. "
        "Use ddp, zero1, zero2 or zero3 alone.",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("ranks", "plan", "name", "said"), REFUSED)
def test_what_cannot_be_is_refused_by_name(ranks, plan, name, said):
    assert run(refusal, ranks, plan, name) == [said] * ranks


def capacity_and_context():
    try:
        climb(model(capacity=1.0), loss="cross_entropy", plan="fp32 context=2", device="cpu")
    except StepladderError as refused:
        return str(refused)


def test_capacity_of_whole_sequences_is_refused_where_they_are_cut():
    said = (
        "layout.context: 'blocks.0.mlp' counts its capacity in whole sequences, and context=2 cuts "
        "them. Build the model with capacity=0."
    )
    assert run(capacity_and_context, 2) == [said] * 2
