"""A loop ends once a value has not improved for a while."""

import math

import pytest

from stepladder.errors import PlanError
from stepladder.train import EarlyStopping, climb
from tests.train.toys import net


def stops_at(values, **how) -> int | None:
    """The place of the first value at which the loop ends."""
    stop = EarlyStopping(**how)
    return next((place for place, value in enumerate(values) if stop(value)), None)


def test_it_stops_after_so_many_values_in_a_row_without_improvement():
    falling = [5.0, 4.0, 4.5, 4.2, 3.9, 4.0, 3.9, 3.95]
    assert stops_at(falling, patience=3) == 7
    assert stops_at(falling, patience=2) == 3
    assert stops_at(falling[:7], patience=3) is None


def test_higher_values_are_better_where_it_is_told_so():
    assert stops_at([0.1, 0.2, 0.3, 0.25, 0.3], patience=2, mode="max") == 4
    assert stops_at([0.1, 0.2, 0.3, 0.25, 0.3], patience=2) == 2


def test_an_improvement_by_no_more_than_min_delta_is_none():
    assert stops_at([1.0, 0.75, 0.8, 0.25], patience=2, min_delta=0.25) == 2
    assert stops_at([1.0, 0.75, 0.8, 0.25], patience=2, min_delta=0.2) is None


def test_nan_counts_as_worse():
    assert stops_at([math.nan, math.nan], patience=2) == 1
    assert stops_at([1.0, math.nan, 0.5, math.nan], patience=2) is None
    assert stops_at([math.nan, 0.5, 0.4, math.nan], patience=2, mode="max") == 3


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"patience": 0}, "patience: 0 is not a number of values to wait for. Use 1 or more."),
        ({"mode": "mim"}, "mode: 'mim' does not say which values are better. Did you mean 'min'?"),
        ({"min_delta": -1}, "min_delta: -1 is not a difference between two values. Use 0 or more."),
    ],
)
def test_settings_that_make_no_sense_are_refused(how, said):
    with pytest.raises(PlanError) as refused:
        EarlyStopping(**how)
    assert str(refused.value) == said


def registered(**how):
    run, stop = climb(net(), loss="cross_entropy", plan="fp32"), EarlyStopping(**how)
    run.register_for_checkpointing("early_stopping", stop)
    return run, stop


def test_it_goes_on_with_its_run(tmp_path):
    run, stop = registered(patience=3)
    assert not any(stop(value) for value in (0.1, math.nan, 0.1 + 2**-55))
    run.save(tmp_path)

    resumed, again = registered(patience=3)
    resumed.resume(tmp_path)
    assert resumed.events == []
    assert (again.best, again.waited) == (0.1, 2)
    assert again(0.2) and stop(0.2)


def test_another_mode_than_the_saved_one_is_refused(tmp_path):
    registered()[0].save(tmp_path)
    with pytest.raises(PlanError, match="its mode was 'min' when it was saved, and 'max' now"):
        registered(mode="max")[0].load(tmp_path)
