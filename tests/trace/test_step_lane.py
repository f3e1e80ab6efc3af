import pytest

from stepladder.trace import reduce_spans
from stepladder.trace.spans import DATA, STEP, Span
from stepladder.trace.step_lane import step_lane


def test_a_lane_is_the_last_steps_causes_in_order():
    spans = [
        Span(DATA, 0, 100, "thread 1", "phase"),
        Span(STEP, 100, 1000, "thread 1", "phase"),
        Span(DATA, 1000, 1200, "thread 1", "phase"),
        Span(STEP, 1200, 2000, "thread 1", "phase"),
        Span("aten::mm", 1300, 1700, "thread 1", "op"),
        Span("gloo:all_reduce", 1600, 2000, "thread 2", "travel"),
    ]
    lane = step_lane(reduce_spans(spans))
    assert [span["name"] for span in lane] == ["data", "host", "matrix", "communication"]
    assert [span["start"] * 1e9 for span in lane] == pytest.approx([0, 200, 300, 700], abs=6)
    assert sum(span["seconds"] for span in lane) * 1e9 == pytest.approx(1000)


def test_small_things_go_to_what_surrounds_them_and_nothing_is_no_lane():
    spans = [Span(STEP, 0, 100_000, "thread 1", "phase"), Span("aten::mm", 7, 9, "thread 1", "op")]
    assert [span["name"] for span in step_lane(reduce_spans(spans))] == ["host"]
    assert step_lane(reduce_spans([])) == ()
