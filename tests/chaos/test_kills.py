"""A handful of random kills on real ranks; the long form is `python -m tests.chaos.kills`."""

import pytest

from .kills import Kill, Outcome, campaign, show

pytestmark = pytest.mark.soak


@pytest.mark.timeout(1800)  # a minute alone, several on a crowded machine
def test_a_run_that_was_killed_ends_with_the_bits_of_one_that_was_not():
    # One run, unless it came to its end before the last kill.
    outcomes = list(campaign(3, ranks=[2], steps=150, save_every=10, jobs=1, seed=11))
    assert sum(len(outcome.kills) for outcome in outcomes) >= 3
    for outcome in outcomes:
        assert outcome.problem == ""
        assert outcome.identical and outcome.same_losses and outcome.lost == 0


def test_a_run_that_went_back_too_far_is_seen():
    kills = [Kill("SIGKILL", "rank 0", saving=True, committed=20, resumed=10, seconds=1.0)]
    outcome = Outcome(2, 0, 100, kills, identical=True, same_losses=True)
    assert outcome.lost == 1 and not outcome.good
    kills[0].resumed = 20
    assert outcome.good
    assert show([outcome]).splitlines()[-1] == "| 2 | 1 | 1 | 1 | 0 | 0 | 1 | 1 of 1 | 0 | 0 |"
