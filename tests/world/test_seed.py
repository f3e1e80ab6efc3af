"""Randomness is a function of the moment: the same moment draws the same, its neighbours do not."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stepladder.world import deterministic, seed_generators
from stepladder.world.seed import derive_seed

moments = st.lists(st.integers(-(2**40), 2**40) | st.sampled_from(["data", "dropout"]), max_size=3)


def draws(*moment):
    seed_generators(torch.device("cpu"), *moment)
    return torch.rand(4).tolist()


@given(st.integers(-(2**63), 2**63), moments)
def test_the_same_moment_draws_the_same(seed, moment):
    first = draws(seed, *moment)
    torch.rand(7)
    assert draws(seed, *moment) == first


@given(st.integers(-(2**63), 2**63), moments)
def test_a_seed_is_one_torch_takes(seed, moment):
    assert 0 <= derive_seed(seed, *moment) < 2**63


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 100))
def test_the_neighbours_of_a_moment_draw_others(seed, step, index):
    around = [
        (seed, step, index),
        (seed + 1, step, index),
        (seed, step + 1, index),
        (seed, step, index + 1),
        (seed, step),
        (seed, step, "data"),
    ]
    assert len({tuple(draws(*moment)) for moment in around}) == len(around)


def test_digits_of_neighbouring_numbers_do_not_run_together():
    assert derive_seed(1, 23) != derive_seed(12, 3)


def test_a_seed_is_the_same_in_every_version_of_the_program():
    assert derive_seed(0, 1, 2) == 4529435921577843265  # a changed seed would break every resume


def flags():
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.backends.cudnn.benchmark,
        torch.utils.deterministic.fill_uninitialized_memory,
    )


@pytest.fixture
def restored():
    before = flags()
    yield
    torch.use_deterministic_algorithms(before[0], warn_only=before[1])
    torch.backends.cudnn.benchmark = before[2]
    torch.utils.deterministic.fill_uninitialized_memory = before[3]


@pytest.mark.parametrize("before", [(False, False, False, True), (True, True, True, False)])
def test_the_deterministic_mode_leaves_the_flags_as_they_were(before, restored):
    torch.use_deterministic_algorithms(before[0], warn_only=before[1])
    torch.backends.cudnn.benchmark = before[2]
    torch.utils.deterministic.fill_uninitialized_memory = before[3]
    with deterministic(True):
        assert flags() == (True, False, False, False)
    assert flags() == before


def test_the_flags_come_back_after_an_error_too(restored):
    before = flags()
    with pytest.raises(ZeroDivisionError), deterministic(True):
        raise ZeroDivisionError
    assert flags() == before


def test_not_deterministic_changes_nothing():
    before = flags()
    with deterministic(False):
        assert flags() == before


def test_an_algorithm_that_varies_is_refused_inside(restored):
    with deterministic(True), pytest.raises(RuntimeError, match="deterministic"):
        torch.nn.functional.max_unpool2d(
            torch.ones(1, 1, 1, 1), torch.zeros(1, 1, 1, 1, dtype=torch.long), 2
        )
