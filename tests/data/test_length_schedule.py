import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepladder.data.length_schedule import LengthSchedule
from stepladder.errors import DataError


def test_each_length_holds_from_its_step_on():
    schedule = LengthSchedule.parse("128@0, 256@100,512@200")
    assert [schedule.at(step) for step in (0, 99, 100, 199, 200, 10**9)] == [
        128,
        128,
        256,
        256,
        512,
        512,
    ]
    assert schedule.longest == 512
    assert LengthSchedule.parse("64").at(7) == 64


@given(pairs=st.dictionaries(st.integers(1, 10**6), st.integers(1, 10**5), max_size=5))
def test_a_schedule_is_its_text(pairs):
    steps = (0, *sorted(pairs))
    schedule = LengthSchedule(tuple(pairs.get(step, 7) for step in steps), steps)
    assert LengthSchedule.parse(str(schedule)) == schedule


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("128@x", "'128@x' is not a length and a step. Write it as '128@0,256@100'"),
        ("", "'' is not a length and a step"),
        ("128@5", "the schedule begins at step 5, not at step 0. Write it as"),
        ("1@0,2@9,3@9", "step 9 comes after step 9. Put the steps in rising order"),
        ("0@0", "0 is not a number of tokens. Use at least 1"),
    ],
)
def test_a_wrong_schedule_says_what_is_wrong_and_shows_a_right_one(text, problem):
    with pytest.raises(DataError, match=r"lengths: " + problem):
        LengthSchedule.parse(text)


def test_an_empty_schedule_is_refused():
    with pytest.raises(DataError, match=r"the schedule begins at no step, not at step 0"):
        LengthSchedule((), ())
