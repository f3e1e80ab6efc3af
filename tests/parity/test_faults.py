"""The comparison can fail: every planted fault is caught, and Adam's losses alone miss some."""

from functools import partial

import pytest

from .faults import FAULTS, faulty
from .pool import CLIPPED, LLAMA, compare

# Adam divides a gradient by its own size, and clipping by the norm: both forgive a constant factor.
FORGIVEN = ("missing factor", "missing factor, sharded", "doubled loss scale", "own norm")
UNSEEN = "share not added up"  # a rank's share of a sum has the sum's sign, mostly: enough for Adam


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("faults")


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_caught(fault, folder):
    # The same plans without a fault are in test_plans.py.
    found = compare(folder, LLAMA, FAULTS[fault][1], learn=partial(faulty, fault))
    assert (found.verdict, found.problem) == ("DIFFERENT", "")


@pytest.mark.parametrize("fault", FORGIVEN)
def test_losses_under_adam_and_clipping_hide_a_wrong_scale(fault, folder):
    found = compare(folder, LLAMA, FAULTS[fault][1], CLIPPED, learn=partial(faulty, fault))
    assert found.loss <= found.tolerance, "no loss curve would have shown it"
    assert not found.same, "the gradient norm does"


def test_losses_under_adam_hide_a_sum_that_is_not_made(folder):
    found = compare(folder, LLAMA, FAULTS[UNSEEN][1], CLIPPED, learn=partial(faulty, UNSEEN))
    assert found.loss <= found.tolerance and not found.problem
