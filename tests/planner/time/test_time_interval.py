"""Intervals of a step's time: wider where less is known."""

import pytest

from stepladder.hardware import find_device
from stepladder.planner.time.time_interval import time_interval
from stepladder.record import Time

PRODUCTS = Time(matrix=1.0)
H100, B200 = find_device("H100"), find_device("B200")


def width(time=PRODUCTS, device=H100, **how):
    span = time_interval(time, device, **how)
    assert span.low < time.step_seconds < span.high
    assert span.high - time.step_seconds > time.step_seconds - span.low, "late is likelier"
    return span.high / span.low


def test_every_other_cause_is_known_less_closely_than_products():
    causes = [cause for cause in PRODUCTS.by_cause() if cause != "matrix"]
    assert all(width(Time(matrix=0.5, **{cause: 0.5})) > width() for cause in causes)


def test_stages_and_unmeasured_devices_widen_it_and_a_calibration_measures_one():
    assert width(pipeline=4) > width() and width(mixture=True) > width()
    assert width(device=B200) > width() == width(device=B200, calibrated=True)


def test_it_scales_with_the_step():
    one, ten = (time_interval(Time(matrix=n), H100) for n in (1.0, 10.0))
    assert ten.high == pytest.approx(10 * one.high) and ten.low == pytest.approx(10 * one.low)
