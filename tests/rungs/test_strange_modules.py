"""Strangers' modules learn under every plan what a plain torch loop learns from whole batches."""

from functools import cache

import pytest

from tests.ranks import run
from tests.rungs.plain_loop import differences, plain, planned_all

expected = cache(plain)

ODD_PARAMETERS = ["scaled", "scaled_blocks", "empty", "complex", "integers", "noncontiguous"]
ODD_ATTRIBUTES = ["old_weight_norm", "pruned", "cached", "locked", "stored"]
HOOKS = ["gradient_hooks", "accumulate_hooks"]
MADE_BY_A_BATCH = ["lazy", "sparse"]


IN_PLACE = ["in_place", "relu_first"]  # the first operation of a block writes to its input
SPECTRAL = ["spectral", "old_spectral"]
CONDITIONAL = ["unused", "skipped"]  # which parts run depends on the rows, and so on the rank


def wrong(found, cases):
    """What differs from the plain loop, by case."""
    bad = {case: differences(found[case], expected(case)) for case in cases}
    return {case: names for case, names in bad.items() if names}


@pytest.mark.parametrize("plan", ["fp32", "fp32 micro=2"])
def test_on_one_device(plan):
    cases = [*ODD_PARAMETERS, *ODD_ATTRIBUTES[:4], *HOOKS, *MADE_BY_A_BATCH, *SPECTRAL, "annealed"]
    assert wrong(planned_all(cases, plan), cases) == {}


@pytest.mark.parametrize("plan", ["fp32 recompute=blocks", "fp32 recompute=selective micro=2"])
def test_recomputed_blocks_may_write_to_their_inputs_and_count_their_calls(plan):
    cases = [*IN_PLACE, "annealed"]
    assert wrong(planned_all(cases, plan), cases) == {}


@pytest.mark.parametrize(
    ("plan", "cases"),
    [
        ("fp32 ddp", [*ODD_ATTRIBUTES, *HOOKS, *MADE_BY_A_BATCH, "complex", "max_norm"]),
        ("fp32 zero1", [*HOOKS, "complex", "sparse"]),
        (
            "fp32 zero2 micro=2",
            [*ODD_PARAMETERS, *HOOKS, *CONDITIONAL, *SPECTRAL, "max_norm", "annealed"],
        ),
        (
            "fp32 zero3",
            [
                *ODD_PARAMETERS,
                *ODD_ATTRIBUTES,
                *HOOKS,
                *MADE_BY_A_BATCH,
                *CONDITIONAL,
                *IN_PLACE,
                "max_norm",
            ],
        ),
        ("fp32 tensor=2", [*ODD_PARAMETERS, *HOOKS]),
        (
            "fp32 pipeline=2 micro=4",
            [*ODD_PARAMETERS, "old_weight_norm", *HOOKS, "frozen", "annealed"],
        ),
    ],
)
def test_on_two_ranks(plan, cases):
    for found in run(planned_all, 2, cases, plan, init=False):
        assert wrong(found, cases) == {}


@pytest.mark.parametrize(
    "plan", ["fp32 tensor=2 zero3 shard=2", "fp32 pipeline=2 replicate=2 micro=2"]
)
def test_on_four_ranks(plan):
    cases = ["scaled_blocks", "empty", "complex", "gradient_hooks"]
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
            "spectral",
            "fp32 pipeline=2 micro=4",
            "layout.pipeline: spectral norm of Net would advance in every micro-batch. "
            "Use pipeline=1, and shard instead.",
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
