"""What trainings are compared by: their last tenth, against the same seeds."""

import pytest

from stepladder.bench.loss_curves.final_loss import differences, mean_of_last


def test_the_last_tenth_counts_and_at_least_one_loss():
    assert mean_of_last([9.0] * 18 + [1.0, 2.0]) == 1.5
    assert mean_of_last([9.0] * 11 + [1.0]) == 5.0 and mean_of_last([3.0]) == 3.0


def test_each_seed_is_compared_with_itself():
    assert differences([2.0, 5.0], [1.5, 4.0]) == pytest.approx([0.5, 1.0])
    assert differences([2.0, None], [1.5, 4.0]) is None, "a training that broke off has no end"
    assert differences([2.0, 3.0], [None, 4.0]) is None
