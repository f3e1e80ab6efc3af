"""Answers are read as people write them, and held against what is computed now."""

import pytest

from stepladder.errors import StepladderError
from stepladder.labs.course import figures
from stepladder.labs.course.grade_answer import grade_answer
from stepladder.labs.course.syllabus import find_unit
from stepladder.labs.course.unit import HandIn, Question, Trap, Unit

MEMORY = find_unit("memory")


def unit(*items: Question | HandIn) -> Unit:
    return Unit("own", "Own", "Goal.", 1, (), (), items)


@pytest.mark.parametrize("text", ["state=100.4", "state=100.4 GiB", " state = 1.004e2GiB"])
def test_a_number_may_have_its_unit_behind_it(text):
    assert grade_answer(MEMORY, text).passed


def test_a_number_may_be_off_by_what_the_question_allows():
    asked = unit(Question("n", "?", lambda: 1000.0, within=0.02))
    assert grade_answer(asked, "n=1,019").passed
    assert not grade_answer(asked, "n=1021").passed


@pytest.mark.parametrize("text", ["2^-7", "1/128", "2**-7", "0.0078125", ".0078", "1 / 128"])
def test_a_number_may_be_a_fraction_or_a_power(text):
    assert grade_answer(find_unit("precision"), f"step={text}").passed


def test_a_choice_may_be_typed_in_capitals():
    assert grade_answer(find_unit("precision"), "t4=FP16").passed


def test_a_count_is_right_or_wrong():
    asked = unit(Question("n", "?", lambda: 1000, within=0))
    assert grade_answer(asked, "n=1_000").passed
    assert not grade_answer(asked, "n=1001").passed


def test_a_wrong_answer_that_people_give_is_told_what_is_wrong_with_it():
    assert grade_answer(MEMORY, "bytes=2").said == (
        "That is the bf16 weight alone, as in inference."
    )
    assert grade_answer(MEMORY, "bytes=3").said == "That is not it."
    assert "recomputed" in grade_answer(MEMORY, "owner=activations").said


def test_the_right_answer_is_the_planners_of_today(monkeypatch):
    assert grade_answer(find_unit("strategy"), "days=200").passed
    monkeypatch.setattr(figures, "DAY", 2 * figures.DAY)
    assert not grade_answer(find_unit("strategy"), "days=200").passed


def test_a_folder_is_judged_by_what_is_wrong_with_it():
    asked = unit(HandIn("run", "?", lambda folder: "" if folder == "good" else "No run there."))
    assert grade_answer(asked, "run=good").passed
    assert grade_answer(asked, "run=bad").said == "No run there."


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("bytes", "answer: 'bytes' has no '='. Write ITEM=VALUE."),
        ("byte=2", "answer: memory has no item called 'byte'. Did you mean 'bytes'?"),
        ("bytes=few", "bytes: 'few' is not a number. Write it as 1234.5; 3/4 and 2^-7 are numbers"),
        ("state=all", "state: 'all' is not a number. Write it as 1234.5 GiB; 3/4 and 2^-7 are"),
        ("state=100,4", "state: '100,4' is not a number. Write it as 1234.5 GiB;"),
        ("state=1/0", "state: '1/0' is not a number."),
        ("state=9^9999", "state: '9^9999' is not a number."),
        ("state=-1^0.5", "state: '-1^0.5' is not a number."),
        ("state=1e999", "state: '1e999' is not a number."),
        ("state=5 GB", "state: 'GB' is not its unit. It counts GiB."),
        ("bytes=5 GB", "bytes: 'GB' is not its unit. It is a number alone."),
        ("way=fast", "way: 'fast' is none of the choices. Use whole, accumulate, recompute, offl"),
    ],
)
def test_what_is_no_answer_is_a_line(text, said):
    with pytest.raises(StepladderError) as refused:
        grade_answer(MEMORY, text)
    assert str(refused.value).startswith(said)


def test_traps_are_told_in_their_order():
    traps = (Trap(lambda: 3, "First"), Trap(lambda: 3, "Second"))
    assert grade_answer(unit(Question("n", "?", lambda: 2, traps=traps)), "n=3").said == "First."
