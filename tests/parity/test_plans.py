"""Every rung computes what one device computes: losses, gradient norms and parameters.

A short form of benchmarks/parity/parity_table.py, which runs every plan for ten steps.
"""

import pytest

from tests.soak import soak_after

from .pool import CLIPPED, LLAMA, MIXTURE, SGD, compare, foreign

PLANS = [
    "fp32 ddp",
    "fp32 zero1",
    "fp32 zero2",
    "fp32 zero3",
    "fp16 ddp",
    "bf16 zero3 recompute=blocks",
]
CASES = [(plan, optimizer) for optimizer in (SGD, CLIPPED) for plan in PLANS]
SLOW = 2  # the last: many processors emulate 16-bit types
OTHERS = [
    ("resnet-tiny", "fp32 zero3"),  # statistics of a pass, shapes that no two ranks share evenly
    ("mlp-tiny", "fp32 zero1"),
    (foreign("Odd"), "fp32 ddp"),  # tied weights, a branch some passes skip, a frozen parameter
    (foreign("Odd"), "fp32 zero3"),
    (foreign("hf_gpt2"), "fp32 zero2"),
    (LLAMA, "fp32 zero3 exact=ranks"),
    (LLAMA, "fp32 tensor=2"),
    (LLAMA, "fp32 pipeline=2"),
    (LLAMA, "fp32 context=2"),
    (MIXTURE, "fp32 experts=2"),
    (foreign("hf_gpt2"), "fp32 zero3 exact=ranks"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("plans")


@pytest.mark.parametrize(("plan", "optimizer"), soak_after(CASES, gate=-SLOW))
def test_two_ranks_compute_what_one_does(plan, optimizer, folder):
    found = compare(folder, LLAMA, plan, optimizer)
    assert (found.verdict, found.problem) == ("same", "")


@pytest.mark.parametrize(("model", "plan"), soak_after(OTHERS, gate=-1))
def test_for_models_of_any_make(model, plan, folder):
    found = compare(folder, model, plan)
    assert (found.verdict, found.problem) == ("same", "")
