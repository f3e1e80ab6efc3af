"""Answers are kept beside the labs' results, and a unit is done when both are."""

import json

import pytest

from stepladder.errors import RecordError
from stepladder.labs.course.course_notebook import CourseNotebook
from stepladder.labs.course.grade_answer import Graded, grade_answer
from stepladder.labs.course.syllabus import find_unit
from stepladder.labs.notebook import LabNotebook

TENSORS = find_unit("tensors")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    return tmp_path / "stepladder"


def test_answers_are_kept_beside_the_labs(folder):
    CourseNotebook().note(TENSORS, grade_answer(TENSORS, "stride=30"))
    assert json.loads((folder / "course.json").read_text()) == {
        "tensors": {"stride": {"given": "30", "passed": True, "tries": 1}}
    }
    assert CourseNotebook().progress(TENSORS).items_done == 1


def test_a_wrong_answer_does_not_take_back_a_right_one():
    book = CourseNotebook()
    for given, passed in (("5", False), ("30", True), ("6", False)):
        book.note(TENSORS, Graded("stride", given, passed))
    assert book.answer(TENSORS, "stride") == {"given": "30", "passed": True, "tries": 3}


def test_a_unit_is_done_when_its_labs_and_its_answers_are(folder):
    book = CourseNotebook()
    for item in TENSORS.checklist:
        book.note(TENSORS, Graded(item.name, "1", True))
    found = book.progress(TENSORS)
    assert found.begun and not found.done
    labs = LabNotebook()
    labs.pages = {name: {"passed": 2, "of": 2} for name in TENSORS.labs}
    labs.save()
    assert CourseNotebook().progress(TENSORS).done


def test_a_damaged_file_is_begun_anew(folder):
    folder.mkdir()
    for text in ("[]", "{", '{"tensors": 3}', '{"tensors": {"stride": 3}}'):
        (folder / "course.json").write_text(text)
        assert not CourseNotebook().progress(TENSORS).begun


def test_a_folder_that_takes_no_file_is_a_line(folder):
    folder.write_text("a file stands here")
    with pytest.raises(RecordError, match=r"course.json cannot be written \(.*XDG_DATA_HOME"):
        CourseNotebook().note(TENSORS, Graded("stride", "30", True))
