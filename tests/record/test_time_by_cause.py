"""Time by cause adds up, whoever filled it in."""

from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepladder.record import Time

CAUSES = [field.name for field in fields(Time)]
times = st.builds(Time, *[st.floats(0, 1e4)] * len(CAUSES))


@given(times)
def test_a_step_is_the_sum_of_its_causes(time):
    assert time.step_seconds == pytest.approx(sum(getattr(time, cause) for cause in CAUSES))
    assert list(time.by_cause()) == CAUSES


@given(times, times)
def test_a_difference_is_measured_minus_forecast_by_cause(measured, forecast):
    assert measured - forecast == {
        cause: getattr(measured, cause) - getattr(forecast, cause) for cause in CAUSES
    }
