"""Strangers' modules learn under every plan what a plain torch loop learns from whole batches."""

from functools import cache
from unittest.mock import patch

import pytest
from torch import nn
from torch.nn.utils import parametrizations

from stepladder.rungs.data_parallel import zero2_zero3
from stepladder.train import climb
from tests.ranks import run
from tests.rungs.plain_loop import differences, plain, planned_all
from tests.rungs.strange_modules import cross, floats, random_module, tokens
from tests.soak import soak_after

expected = cache(plain)

ODD_PARAMETERS = ["scaled", "scaled_blocks", "empty", "complex", "integers", "noncontiguous"]
ODD_ATTRIBUTES = ["old_weight_norm", "pruned", "cached", "locked", "stored"]
HOOKS = ["gradient_hooks", "accumulate_hooks"]
MADE_BY_A_BATCH = ["lazy", "sparse"]


IN_PLACE = ["in_place", "relu_first"]  # the first operation of a block writes to its input
SPECTRAL = ["spectral", "old_spectral", "spectral_head", "spectral_shared"]
WIDE = ["float64", "weighted64"]  # given in float64, which no plan stores
CONDITIONAL = [
    "unused",
    "skipped",
    "routed",
    "rarely",
]  # which parts run depends on the rows, and so on the rank


IN_THE_SOAK = [
    ("fp32 zero2 micro=2", [*ODD_PARAMETERS, "max_norm", "experts"]),
    ("fp32 zero2 micro=2", ["gradient_hooks", *SPECTRAL[1:]]),
    ("fp32 zero3", ["scaled_blocks", "integers", *ODD_ATTRIBUTES[1:], "accumulate_hooks"]),
    ("fp32 zero3", ["sparse", *CONDITIONAL, "relu_first", "experts"]),
    ("fp32 tensor=2", ["complex", "integers", "accumulate_hooks"]),
    (
        "fp32 pipeline=2 micro=4",
        [*ODD_PARAMETERS[3:], "old_weight_norm", *HOOKS, *SPECTRAL[1:3]],
    ),
]


def wrong(found, cases):
    """What differs from the plain loop, by case."""
    bad = {case: differences(found[case], expected(case)) for case in cases}
    return {case: names for case, names in bad.items() if names}


@pytest.mark.parametrize("plan", ["fp32", "fp32 micro=2"])
def test_on_one_device(plan):
    cases = [*ODD_PARAMETERS, *ODD_ATTRIBUTES[:4], *HOOKS, *MADE_BY_A_BATCH, *SPECTRAL, "annealed",
             *WIDE, "running_mean"]  # fmt: skip
    assert wrong(planned_all(cases, plan), cases) == {}


@pytest.mark.parametrize("plan", ["fp32 recompute=blocks", "fp32 recompute=selective micro=2"])
def test_recomputed_blocks_may_write_to_their_inputs_and_count_their_calls(plan):
    cases = [*IN_PLACE, "annealed"]
    assert wrong(planned_all(cases, plan), cases) == {}


@pytest.mark.parametrize(
    ("plan", "cases"),
    [
        (
            "fp32 ddp",
            [*ODD_ATTRIBUTES, *HOOKS, *MADE_BY_A_BATCH, "complex", "max_norm", "weighted64"],
        ),
        ("fp32 ddp micro=1", ["running_mean", "experts"]),
        ("fp32 zero1", [*HOOKS, "complex", "sparse"]),
        (
            "fp32 zero2 micro=2",
            ["accumulate_hooks", *CONDITIONAL, "spectral", "annealed", "running_mean"],
        ),
        (
            "fp32 zero3",
            [
                "scaled",
                "empty",
                "complex",
                "noncontiguous",
                "old_weight_norm",
                "gradient_hooks",
                "lazy",
                "in_place",
                "max_norm",
                "object",
                "spectral_head",
                "float64",
            ],
        ),
        ("fp32 tensor=2", [*ODD_PARAMETERS[:3], "noncontiguous", "gradient_hooks"]),
        ("fp32 pipeline=2 micro=4", [*ODD_PARAMETERS[:3], "frozen", "annealed", "spectral"]),
        *(pytest.param(*more, marks=pytest.mark.soak) for more in IN_THE_SOAK),
    ],
)
def test_on_two_ranks(plan, cases):
    for found in run(planned_all, 2, cases, plan, init=False):
        assert wrong(found, cases) == {}


@pytest.mark.parametrize("cases", soak_after([["scaled_blocks", "complex"], ["empty", *HOOKS]]))
@pytest.mark.parametrize(
    "plan", ["fp32 tensor=2 zero3 shard=2", "fp32 pipeline=2 replicate=2 micro=2"]
)
def test_on_four_ranks(plan, cases):
    for found in run(planned_all, 4, cases, plan, init=False):
        assert wrong(found, cases) == {}


@pytest.mark.parametrize(
    ("case", "plan", "refusal"),
    [
        (
            "scripted",
            "fp32 zero3",
            "RecursiveScriptModule: is TorchScript, which cannot be changed in place. "
            "Give the nn.Module itself.",
        ),
        (
            "by_freq",
            "fp32 ddp",
            "model.embed: divides gradients by how often a token is in the batch "
            "(scale_grad_by_freq), and this plan computes a batch in parts. "
            "Use scale_grad_by_freq=False, or one rank without micro.",
        ),
        (
            "unused",
            "fp32 pipeline=2 micro=4",
            "layout.pipeline: Unused cannot be traced, since its code depends on numbers "
            "(DataDependentOutputException). Use pipeline=1, and shard or tensor instead.",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_all_ranks_in_one_line(case, plan, refusal):
    assert run(planned_all, 2, [case], plan, init=False) == [{case: refusal}] * 2


def before_torch_2_13(cases, plan):
    """As with a torch whose FSDP2 sends only the gradients that a rank has."""
    with patch.object(zero2_zero3, "sends_unused", lambda module: False):
        return planned_all(cases, plan)


@pytest.mark.parametrize(
    "plan",
    soak_after(["fp32 zero2 micro=2", "fp32 zero3 recompute=blocks", "fp32 zero3"], gate=2),
)
def test_ranks_that_use_different_parameters_send_zeros_before_torch_2_13_too(plan):
    cases = ["experts", "in_place", *CONDITIONAL]
    for found in run(before_torch_2_13, 2, cases, plan, init=False):
        assert wrong(found, cases) == {}


def test_the_stage_that_runs_the_code_has_the_statistics_it_writes():
    _, last = run(planned_all, 2, ["running_mean"], "fp32 pipeline=2 micro=4", init=False)
    assert wrong(last, ["running_mean"]) == {}


def spectral_reader():
    """An embedding and a head whose weight is computed whenever somebody looks at it."""
    made = nn.Sequential(nn.Embedding(7, 6), nn.Flatten(), nn.Linear(30, 3))
    parametrizations.spectral_norm(made[2])
    return made, tokens(0)


@pytest.mark.parametrize(
    "make",
    [spectral_reader, *(lambda case=case: (random_module(case), floats(0)) for case in SPECTRAL)],
)
def test_climbing_leaves_what_a_forward_pass_would_change(make):
    module, sample = make()
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    climb(module, loss=cross, plan="fp32 micro=4", sample=sample, device="cpu")
    assert {n for n, b in module.named_buffers() if not b.equal(before[n])} == set()
