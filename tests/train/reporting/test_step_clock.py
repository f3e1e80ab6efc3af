"""Seconds a step, over the steps since somebody last looked."""

import time

import pytest

from stepladder.train.reporting.step_clock import Clock


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


def test_a_step_under_the_profiler_has_no_part_in_the_time_of_others():
    clock = Clock()
    clock.restart(0)
    clock._since -= 300.0
    clock.wait(30.0)
    with clock.leave_out_step():
        clock.wait(500.0)
        clock._left_out = (0, 200.0)  # seconds that the profiler took
    assert clock.read(2) == (pytest.approx(50.0, rel=0.01), pytest.approx(15.0))
    with clock.leave_out_step():
        pass
    assert clock.read(3)[0] == pytest.approx(50.0, rel=0.01), "a step alone has the time before it"
    clock._since -= 7.0
    assert clock.read(4)[0] == pytest.approx(7.0, rel=0.01)


def test_a_report_read_after_a_restart_has_the_time_that_was_last_read():
    clock = Clock()
    clock._since -= 9.0
    clock.read(0)
    clock.restart(3)  # after an evaluation, say
    assert clock.read(2)[0] == pytest.approx(9.0, rel=0.01)
