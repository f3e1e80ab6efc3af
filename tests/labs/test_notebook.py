"""What a learner did is kept: checks that passed, and a number said before it is measured."""

import pytest

from stepladder.errors import RecordError
from stepladder.labs.catalogue.courses import find_lab
from stepladder.labs.grading.finding import Finding
from stepladder.labs.grading.race import RaceResult
from stepladder.labs.notebook import LabNotebook

LAB = find_lab("loss-scale")


def test_progress_is_what_passed_at_the_last_check(tmp_path):
    path = tmp_path / "kept" / "labs.json"
    book = LabNotebook(path)
    assert book.progress(LAB) == ""
    book.note_check(LAB, [Finding("a", True), Finding("b", False)])
    assert LabNotebook(path).progress(LAB) == "1 of 2"
    book.note_check(LAB, [Finding("a", True), Finding("b", True)])
    assert LabNotebook(path).progress(LAB) == "done"
    path.write_text("not json")
    assert LabNotebook(path).progress(LAB) == ""


def test_a_prediction_comes_before_the_measurement(tmp_path):
    book = LabNotebook(tmp_path / "labs.json")
    book.predict(LAB, 3.0)
    book.note_measured(LAB, [{"step": 0, "scale": 1.0}, {"step": 1, "scale": 4.0}])
    assert LabNotebook(book.path).prediction_error(LAB) == 0.25
    with pytest.raises(RecordError) as refused:
        book.predict(LAB, 4.0)
    assert str(refused.value) == (
        "predict: loss-scale was measured before: 4. "
        "Predict another lab, before 'lab run' shows it."
    )
    book.page(LAB).update(measured=0.0, predicted=0.5)
    assert book.prediction_error(LAB) == 0.5


def test_hints_are_counted_by_part(tmp_path):
    book = LabNotebook(tmp_path / "labs.json")
    assert book.hints_seen(LAB, 2) == 0
    book.note_hint(LAB, 2)
    book.note_hint(LAB, 2)
    assert LabNotebook(book.path).hints_seen(LAB, 2) == 2 and book.hints_seen(LAB, 1) == 0


def test_a_board_has_the_best_first_and_the_unknown_last(tmp_path):
    book = LabNotebook(tmp_path / "labs.json")
    book.note_race(LAB, "stepladder", RaceResult(2.0, 10))
    book.predict(LAB, 3.0)
    book.note_measured(LAB, [{"scale": 4.0}])
    book.note_race(LAB, "me", RaceResult(1.0, 20))
    book.note_race(LAB, "me", RaceResult(3.0, 20))
    order = {
        by: [row["who"] for row in book.board(LAB, by=by)] for by in ("seconds", "bytes", "error")
    }
    assert order["seconds"] == order["bytes"] == ["stepladder", "me"]
    assert order["error"] == ["me", "stepladder"]


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    book = LabNotebook(tmp_path / "file" / "labs.json")
    with pytest.raises(RecordError, match="cannot be written .*Name another folder with XDG_DATA"):
        book.predict(LAB, 1.0)
