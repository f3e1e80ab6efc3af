"""The course command: the list, a unit, answers right and wrong, and what is kept."""

import json
import os
import subprocess
import sys

import pytest

from stepladder.cli.main import main
from stepladder.labs.course.course_notebook import CourseNotebook
from stepladder.labs.course.grade_answer import Graded
from stepladder.labs.course.syllabus import all_units
from stepladder.labs.notebook import LabNotebook


def read(said: str) -> str:
    """As one reads it: where a line ends says nothing."""
    return " ".join(said.split())


@pytest.fixture
def course(tmp_path, monkeypatch, capsys):
    """What the command says in a new learner's home."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))

    def run(*words: str, code: int = 0) -> str:
        assert main(["course", *words]) == code
        said = capsys.readouterr()
        return said.err if code == 2 else said.out

    return run


def test_it_lists_every_unit_with_progress(course):
    said = course()
    assert "Part 1: One GPU" in said and f"0 of {len(all_units())} units are done" in said
    assert all(unit.name in said for unit in all_units())
    course("tensors", "--answer", "stride=30")
    line = next(line for line in course().splitlines() if line.split()[:1] == ["tensors"])
    assert "1 of 3" in line and line.split()[-1] == "begun"


def test_a_unit_shows_what_to_read_to_do_and_to_answer(course):
    said = read(course("memory"))
    for words in ("Read: docs/glossary.md", "stepladder lab start training-memory", "(bonus)",
                  "Take away:", "Ready when you can answer:", "- bytes: How many bytes",
                  "whole, accumulate, recompute or offload]"):  # fmt: skip
        assert words in said
    course("memory", "--answer", "bytes=16")
    assert "x bytes: How many bytes" in course("memory")


@pytest.mark.parametrize("columns", ["80", "200"])
def test_no_line_of_a_unit_is_wider_than_the_terminal(course, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    commands = [words for unit in all_units() for words in unit.commands]
    for line in course("model-parallel").splitlines():
        assert len(line) <= min(int(columns), 100) or line.strip() in commands


def test_answers_are_graded_and_kept(course):
    said = course("memory", "--answer", "bytes=2", "--answer", "owner=logits", code=1)
    assert "WRONG   bytes = 2. That is the bf16 weight alone" in said
    assert "right   owner = logits.\n" in said and "1 of 5 answers, 0 of 3 labs." in said
    assert "stepladder plan llama2-7b" in course("memory", "--answer", "price=2", code=1)
    found = json.loads(course("memory", "--answer", "bytes=16", "--json"))
    assert found["passed"] and found["progress"]["items_done"] == 2
    checklist = json.loads(course("memory", "--json"))["checklist"]
    tries = {item["name"]: (item["passed"], item["tries"]) for item in checklist}
    assert tries["bytes"] == (True, 2) and tries["state"] == (False, 0)
    assert "right" not in checklist[0]


def test_a_slip_of_the_pen_keeps_no_answer(course):
    course("memory", "--answer", "bytes=16", "--answer", "stat=1", code=2)
    assert not any(item["tries"] for item in json.loads(course("memory", "--json"))["checklist"])


def test_an_answer_is_graded_where_no_file_can_be_written(course, monkeypatch, tmp_path, capsys):
    (tmp_path / "stepladder").write_text("a file stands here")
    assert main(["course", "memory", "--answer", "bytes=16"]) == 2
    said = capsys.readouterr()
    assert said.out == "right   bytes = 16.\n"
    assert said.err.startswith("course: ") and "XDG_DATA_HOME" in said.err
    assert "0 of 5" in course()


def test_next_is_the_first_unit_that_is_not_done(course):
    assert json.loads(course("next", "--json"))["name"] == "tensors"
    for answer in ("stride=30", "copy=31.25", "read=4.904"):
        course("tensors", "--answer", answer)
    book = LabNotebook()
    book.pages = {name: {"passed": 1, "of": 1} for name in ("views", "devices")}
    book.save()
    assert course("tensors", "--answer", "stride=30").endswith("labs. Done.\n")
    assert json.loads(course("next", "--json"))["name"] == "arithmetic"
    units = json.loads(course("--json"))["units"]
    assert [unit["name"] for unit in units if unit["done"]] == ["tensors"]


def test_a_bonus_lab_can_be_left_out_and_the_course_has_an_end(course):
    book = LabNotebook()
    book.pages = {name: {"passed": 1, "of": 1} for unit in all_units() for name in unit.labs}
    book.save()
    for unit in all_units():
        for item in unit.checklist:
            CourseNotebook().note(unit, Graded(item.name, "1", True))
    assert "The course is done" in course() and "The course is done" in course("next")
    assert json.loads(course("arithmetic", "--json"))["bonus_labs"] == {
        "occupancy": False,
        "custom-kernel": False,
    }


def test_a_users_mistake_is_one_line(course):
    assert course("memry", code=2) == (
        "unit: there is no unit called 'memry'. Did you mean 'memory'?\n"
    )
    assert course("--answer", "a=1", code=2) == (
        "answer: no unit is named. stepladder course UNIT --answer a=1\n"
    )


def test_nothing_of_it_imports_torch(tmp_path):
    code = (
        "import sys\nfrom stepladder.cli.main import main\n"
        "main(['course']); main(['course', 'memory', '--answer', 'bytes=16'])\n"
        "print('torch:', 'torch' in sys.modules)"
    )
    home = {**os.environ, "XDG_DATA_HOME": str(tmp_path)}
    said = subprocess.run(
        [sys.executable, "-c", code], env=home, capture_output=True, text=True, check=True
    ).stdout
    assert said.splitlines()[-1] == "torch: False"
