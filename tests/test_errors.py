"""Errors keep one grammar, travel between processes, and tell all problems at once."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepladder import errors
from stepladder.errors import (
    NonFinite,
    PlanError,
    PlanErrors,
    StepladderError,
    TrainingError,
    nearest,
    raise_all,
)

KINDS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, StepladderError) and kind is not PlanErrors
]


def test_a_message_is_field_problem_and_way_out():
    error = PlanError("batch", "100 does not divide by 32", "Nearest that do: 96 or 128.")
    assert str(error) == "batch: 100 does not divide by 32. Nearest that do: 96 or 128."


def test_a_message_ends_in_one_full_stop():
    assert (
        str(PlanError("batch", "is odd")) == str(PlanError("batch", "is odd.")) == "batch: is odd."
    )
    assert str(PlanError("", "Plain words.")) == "Plain words."


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_travels_between_processes_whole(kind):
    error = pickle.loads(pickle.dumps(kind("field", "problem", "Remedy.")))
    assert type(error) is kind
    assert (error.field, error.problem, error.remedy) == ("field", "problem", "Remedy.")
    assert str(error) == "field: problem. Remedy."


def test_several_errors_travel_whole():
    both = PlanErrors([PlanError("a", "is x"), PlanError("b", "is y", "Do z.")])
    again = pickle.loads(pickle.dumps(both))
    assert type(again) is PlanErrors
    assert str(again) == str(both) == "a: is x.\nb: is y. Do z."
    assert [problem.field for problem in again.problems] == ["a", "b"]


def test_the_tree_is_as_drawn():
    assert all(issubclass(kind, StepladderError) for kind in KINDS)
    assert issubclass(PlanErrors, PlanError)
    assert issubclass(NonFinite, TrainingError)
    names = {kind.__name__ for kind in [*KINDS, PlanErrors]}
    assert all(name in (errors.__doc__ or "") for name in names)


def test_no_problem_raises_nothing_one_raises_itself_and_several_raise_all():
    raise_all([])
    one, two = PlanError("a", "is x"), PlanError("b", "is y")
    with pytest.raises(PlanError) as caught:
        raise_all([one])
    assert caught.value is one
    with pytest.raises(PlanErrors) as both:
        raise_all(iter([one, two]))
    assert both.value.problems == (one, two)


def test_a_misspelt_word_gets_the_nearest_and_a_strange_one_gets_all():
    assert nearest("tran", ["train", "bench"]) == "Did you mean 'train'?"
    assert nearest("xyz", ["train", "bench"]) == "Choose one of: train, bench."


@given(st.text(), st.lists(st.text(), max_size=5))
def test_nearest_answers_whatever_it_is_asked(word, choices):
    assert nearest(word, choices).startswith(("Did you mean", "Choose one of"))


def test_a_users_words_cannot_break_the_line_or_reach_the_terminal():
    said = str(PlanError("a\nb", "'\x1b[31m\u2028\ud800é' is not one", "Mend it."))
    assert said == "a\\nb: '\\x1b[31m\\u2028\\ud800é' is not one. Mend it."
