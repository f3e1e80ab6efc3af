from stepladder.trace.quiet_durations import launching_share
from stepladder.trace.spans import Span


def ops(start, *lengths, name="aten::add"):
    spans = []
    for length in lengths:
        spans.append(Span(name, start, start + length, "thread 1", "op"))
        start += length
    return spans


def test_an_operation_that_was_stopped_once_counts_by_its_other_steps():
    disturbed = [*ops(0, 3, 3, 90), *ops(100, 60, 3, 3)]
    assert launching_share([disturbed], [(0, 100), (100, 200)], [], floor=3) == 1.0
    assert launching_share([disturbed[:3]], [(0, 100)], [], floor=3) == 9 / 96


def test_large_operations_ask_for_little_and_views_only_ask():
    assert launching_share([ops(0, 100, 100)], [(0, 300)], [], floor=2) == 4 / 200
    views = ops(0, 50, name="aten::view")
    assert launching_share([views], [(0, 300)], [], floor=2) == 1.0


def test_the_update_and_collectives_are_not_looked_at():
    lane = [*ops(0, 10), *ops(50, 40), *ops(20, 9, name="c10d::allreduce_")]
    assert launching_share([lane], [(0, 100)], [(50, 100)], floor=5) == 0.5


def test_nothing_seen_is_unknown():
    assert launching_share([], [(0, 10)], [], floor=1) is None
    assert launching_share([], [], [], floor=1) is None
