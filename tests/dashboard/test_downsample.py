"""A table keeps no more than its buckets, and no peak is lost in them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepladder.dashboard.downsample import MAX_COLUMNS, Table

FAR = 2**62
values = st.one_of(
    st.floats(-1e6, 1e6, width=32), st.none(), st.just(math.nan), st.just("nan"), st.just(True)
)


def rows_of(table, points=10**6):
    found = table.window(0, FAR, points)
    return found["steps"], found["columns"]


def filled(count, capacity=16, **columns):
    table = Table(capacity)
    for step in range(count):
        table.add(
            step, {name: make(step) for name, make in columns.items()}, step * 10, step * 10 + 9
        )
    return table


def test_few_rows_come_back_one_by_one():
    steps, columns = rows_of(filled(5, loss=float))
    assert steps == [0, 1, 2, 3, 4]
    assert columns["loss"] == {"mean": steps}, "one row is its own lowest and highest"


@given(rows=st.lists(values, min_size=1, max_size=200), points=st.integers(2, 40))
def test_every_window_has_the_lowest_the_highest_and_the_mean(rows, points):
    table = Table(8)
    for step, value in enumerate(rows):
        table.add(step, {"loss": value})
    assert len(table) <= 8
    window = table.window(0, FAR, points)
    assert len(window["steps"]) <= points and window["steps"][-1] == len(rows) - 1
    known = [v for v in rows if isinstance(v, float) and math.isfinite(v)]
    found = window["columns"].get("loss")
    if not known:
        assert found is None
        return
    lows, highs = found.get("low", found["mean"]), found.get("high", found["mean"])
    assert min(v for v in lows if v is not None) == pytest.approx(min(known), rel=1e-5)
    assert max(v for v in highs if v is not None) == pytest.approx(max(known), rel=1e-5)
    for low, mean, high in zip(lows, found["mean"], highs):
        assert (low is None) == (mean is None) == (high is None)
        if low is not None:
            assert low - 1e-4 - abs(low) / 1e5 <= mean <= high + 1e-4 + abs(high) / 1e5


def test_memory_stays_bounded_while_steps_grow():
    table = filled(10_000, capacity=64, loss=float, lr=float)
    assert 32 <= len(table) <= 64
    rows_of(table)  # which counts the newest rows
    assert {len(column.counts) for column in table.columns.values()} == {len(table)}
    assert table.rows_per_bucket == 256 and sum(table.rows) == 10_000


def test_a_range_is_what_touches_it():
    table = filled(100, capacity=128, loss=float)
    found = table.window(40, 49, 1000)
    assert found["steps"] == list(range(40, 50)) and found["rows_per_point"] == 1
    assert table.window(200, 300, 10)["steps"] == []


def test_a_column_that_comes_late_or_goes_is_a_hole_and_not_a_zero():
    table = Table(64)
    for step in range(6):
        table.add(step, {"loss": 1.0, **({"mfu": 0.5} if 2 <= step < 4 else {})})
    assert rows_of(table)[1]["mfu"]["mean"] == [None, None, 0.5, 0.5, None, None]


def test_rewinding_forgets_that_step_and_all_beyond_it():
    table = filled(10, capacity=64, loss=float)
    assert table.rewind(6) is None
    table.add(6, {"loss": 60.0})
    steps, columns = rows_of(table)
    assert steps == list(range(7)) and columns["loss"]["mean"][-2:] == [5.0, 60.0]


def test_rewinding_through_a_bucket_says_where_its_rows_lie():
    table = filled(64, capacity=16, loss=float)  # four rows a bucket
    assert table.rewind(42) == (400, 439)
    assert table.last_step == 39
    assert table.rewind(0) is None and len(table) == 0 and rows_of(table) == ([], {})


def test_a_foreign_journal_cannot_name_columns_without_end():
    table = Table(16)
    for step in range(5 * MAX_COLUMNS):
        table.add(step, {f"owner {step}": 1.0})
    assert len(rows_of(table)[1]) == MAX_COLUMNS


@pytest.mark.parametrize("value", [10**400, 1e39, -math.inf, "1.0", [1], {}, None, True])
def test_what_is_no_number_a_picture_can_show_is_left_out(value):
    table = Table(16)
    table.add(0, {"loss": value})
    assert rows_of(table) == ([0], {})
