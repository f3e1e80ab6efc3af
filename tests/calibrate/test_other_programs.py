"""Work of other programs is told from a process's own and from a machine that has room for both."""

from __future__ import annotations

import pytest

from stepladder.calibrate import other_programs
from stepladder.calibrate.other_programs import ProcessorTime

CORES = 4


@pytest.mark.parametrize(
    ("seconds", "everybody", "own", "said"),
    [
        (10.0, 39.0, 20.0, "other programs used 1.9 of 4 cores meanwhile"),
        (10.0, 40.0, 39.0, ""),  # nearly all of it is our own
        (10.0, 30.0, 10.0, ""),  # others work too, and a core is free
        (0.1, 0.4, 0.0, ""),  # too short to tell
    ],
)
def test_others_are_in_the_way_where_all_cores_work_and_not_for_us(
    monkeypatch, seconds, everybody, own, said
):
    began = ProcessorTime(clock=100.0, everybody=1000.0, own=50.0)
    ends = ProcessorTime(clock=100.0 + seconds, everybody=1000.0 + everybody, own=50.0 + own)
    monkeypatch.setattr(other_programs, "ProcessorTime", lambda: ends)
    monkeypatch.setattr(other_programs.os, "cpu_count", lambda: CORES)
    assert began.others_since() == said


def test_a_process_sees_its_own_work_among_that_of_all():
    began = ProcessorTime()
    while ProcessorTime().own - began.own < 0.1:
        sum(range(10_000))
    now = ProcessorTime()
    assert now.everybody - began.everybody >= 0.05  # in ticks of 10 ms
    assert now.clock > began.clock
