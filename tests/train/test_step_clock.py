"""Seconds a step, over the steps since somebody last looked."""

import time

import pytest

from stepladder.train.step_clock import Clock


def test_time_is_shared_out_over_the_steps_since_the_last_reading():
    clock = Clock()
    clock.restart(3)
    clock._since -= 1000.0  # so long that what this machine does meanwhile does not count
    clock.wait(400.0)
    seconds, waited = clock.read(7)  # steps 3 to 7
    assert seconds == pytest.approx(200.0, rel=0.01)
    assert waited == pytest.approx(80.0)


def test_a_reading_starts_the_next_interval():
    clock = Clock()
    clock.wait(5.0)
    clock.read(0)
    time.sleep(0.02)
    seconds, waited = clock.read(1)
    assert seconds >= 0.02 and waited == 0.0  # not the half of both
