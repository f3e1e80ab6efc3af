"""Experts that are modules in a list, on several ranks, learn what they learn on one device."""

from functools import cache

import pytest
import torch
from torch.distributed.tensor import DTensor
from torch.nn import functional as F

from stepladder.model import describe
from stepladder.plan import Plan
from stepladder.plan.settled.settle import settle
from stepladder.planner.memory.forecast_memory import forecast_state
from stepladder.rungs import local
from stepladder.train import climb
from tests.ranks import run
from tests.soak import soak_after

from . import listed_mixtures as forms

STEPS = 3
WORDS = {"sgd": "sgd lr=0.3", "adamw": "adamw lr=0.01 wd=0.1"}


@cache
def plain(kind, optimizer="sgd"):
    """The whole batch on one device by torch alone."""
    module, losses = forms.model(getattr(forms, kind)), []
    if optimizer == "sgd":
        made = torch.optim.SGD(module.parameters(), lr=0.3)
    else:
        made = torch.optim.AdamW(module.parameters(), lr=0.01, betas=(0.9, 0.95), weight_decay=0.1)
    for step in range(STEPS):
        inputs, targets = forms.batch(step)
        loss = F.cross_entropy(module(inputs).flatten(0, 1), targets.flatten())
        loss.backward()
        made.step()
        made.zero_grad()
        losses.append(loss.item())
    return {name: p.detach() for name, p in module.named_parameters()}, losses


def start(kind, plan, optimizer="sgd"):
    torch.set_num_threads(1)
    return climb(
        forms.model(getattr(forms, kind)), loss="cross_entropy", optimizer=WORDS[optimizer],
        plan=plan, device="cpu", sample=forms.batch(0),
    )  # fmt: skip


def whole(module):
    found = {}
    for name, parameter in module.named_parameters():
        value = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
        found[name.removeprefix("module.")] = value.detach().clone()
    return found


def planned(kind, plan, optimizer="sgd", folder=None, first=0, last=STEPS):
    trained = start(kind, plan, optimizer)
    if first:
        trained.resume(folder)
    steps = range(first, last)
    losses = [trained.step(forms.batch(step), rows="global").read().loss for step in steps]
    if last < STEPS:
        trained.save(folder)
    return whole(trained.module), losses


def assert_same(results, expected, rtol=1e-4, atol=3e-6):
    values, losses = expected
    for found, seen in results:
        assert seen == pytest.approx(losses[-len(seen) :], rel=1e-5)
        for name, value in found.items():
            torch.testing.assert_close(value, values[name], rtol=rtol, atol=atol, msg=name)
    assert set().union(*(found for found, _ in results)) == set(values)


CASES = [
    ("Masked", 2, "fp32 experts=2 micro=2"),
    ("IndexAdd", 4, "fp32 zero3 shard=2 experts=2"),
    ("Dense", 2, "fp32 experts=2"),
    ("Named", 2, "fp32 zero1 shard=1 experts=2 recompute=blocks"),
    ("Masked", 4, "fp32 ddp experts=2 micro=1"),
    ("Masked", 4, "fp32 zero2 shard=2 experts=2 micro=1"),
    ("Masked", 4, "fp32 zero3 shard=2 experts=2 recompute=blocks"),
    ("Masked", 4, "fp32 hsdp shard=1 replicate=2 experts=2"),
    ("Masked", 4, "fp32 experts=4"),
    ("Dense", 4, "fp32 experts=2 pipeline=2 micro=2"),
    ("Masked", 2, "fp32 experts=2 offload=optimizer"),
    ("Masked", 8, "fp32 zero3 shard=2 experts=4"),
    ("IndexAdd", 2, "fp32 experts=2"),
    ("IndexAdd", 4, "fp32 zero1 shard=2 experts=2"),
    ("Dense", 4, "fp32 zero3 shard=2 experts=2"),
    ("Named", 4, "fp32 zero3 shard=2 experts=2"),
]


GATE = [(*CASES[0], "adamw"), (*CASES[1], "sgd")]
EVERY = [(*case, optimizer) for case in CASES for optimizer in WORDS]
EACH = GATE + [case for case in EVERY if case not in GATE]


@pytest.mark.parametrize(("kind", "ranks", "plan", "optimizer"), soak_after(EACH, gate=2))
def test_it_learns_what_it_learns_on_one_device(kind, ranks, plan, optimizer):
    within = {"rtol": 1e-3, "atol": 1e-5} if optimizer == "adamw" else {}
    assert_same(run(planned, ranks, kind, plan, optimizer), plain(kind, optimizer), **within)


@pytest.mark.parametrize(
    ("saved", "before", "resumed", "after"),
    soak_after(
        [
            (2, "fp32 experts=2", 1, "fp32"),
            (4, "fp32 zero3 shard=2 experts=2", 2, "fp32 zero1 shard=1 experts=2"),
            (1, "fp32", 4, "fp32 zero3 shard=2 experts=2"),
            (4, "fp32 experts=4", 2, "fp32 zero3"),
        ],
        gate=1,
    ),
)
def test_a_run_goes_on_in_another_layout(tmp_path, saved, before, resumed, after):
    """No token chooses one of the experts: AdamW has no state of it, in any layout."""
    folder = str(tmp_path / "run")
    run(planned, saved, "Masked", before, "adamw", folder, 0, 2)
    results = run(planned, resumed, "Masked", after, "adamw", folder, 2)
    never = "blocks.1.mixture.experts.3.up.weight"
    values, _ = plain("Masked", "adamw")
    assert torch.equal(values[never], forms.model(forms.Masked).get_parameter(never))
    assert_same(results, plain("Masked", "adamw"), rtol=1e-3, atol=1e-5)


def held(plan):
    module = start("Masked", plan).module
    return sorted(name for name, _ in module.named_parameters() if "blocks.0" in name)


def test_a_rank_holds_its_experts_and_no_others():
    first, second = run(held, 2, "fp32 experts=2")
    assert "blocks.0.mixture.experts.0.up.weight" in first
    assert "blocks.0.mixture.experts.3.up.weight" in second
    assert {name for name in first if name in second} == {
        "blocks.0.mixture.gate.weight", "blocks.0.norm.bias", "blocks.0.norm.weight",
    }  # fmt: skip


def held_bytes(kind, plan):
    trained = start(kind, plan, "adamw")
    trained.step(forms.batch(0), rows="global").read()
    shards = trained.climbed.shards
    parameters, whole = [shard.owned for shard in shards], [shard.parameter for shard in shards]
    state = [kept for p in parameters for kept in trained.optimizer.state[p].values()]
    # AdamW keeps nothing of an expert that no token chose, and counts steps in four bytes.
    unused = sum(2 * p.nbytes for p in parameters if not trained.optimizer.state[p])
    moments = sum(one.nbytes for one in state if one.dim())
    return sum(local(p).nbytes for p in whole), moments + unused


@pytest.mark.parametrize(
    ("kind", "ranks", "plan"),
    soak_after(
        [
            ("Masked", 2, "fp32 experts=2 micro=2"),
            ("Named", 4, "fp32 zero3 shard=2 experts=2 micro=2"),
            ("Dense", 4, "fp32 zero1 shard=2 experts=2 micro=2"),
        ]
    ),
)
def test_a_rank_holds_the_bytes_that_are_forecast(kind, ranks, plan):
    made = forms.model(getattr(forms, kind))
    facts = describe(made, sample=forms.batch(0), probe=True, device="cpu")
    settled = settle(Plan.parse(f"{plan} batch=8"), num_ranks=ranks).plan
    (forecast,) = forecast_state(facts, settled)
    for parameters, optimizer in run(held_bytes, ranks, kind, plan):
        assert (parameters, optimizer) == (forecast.parameters, forecast.optimizer)


def counted():
    trained = start("Noisy", "fp32 experts=2")
    for step in range(2):
        trained.step(forms.batch(step), rows="global").read()
    mixture = trained.module.blocks[0].mixture
    return mixture.calls, mixture.seen


def test_the_pass_that_is_repeated_leaves_no_trace_and_draws_the_same():
    assert run(counted, 2) == [(2, [1, 2])] * 2
