"""The units hold together: every lab in one place, every page and command there, traps wrong."""

import argparse
import importlib
import shlex
from pathlib import Path

import pytest

from stepladder.cli.command_parser import CommandParser
from stepladder.cli.main import COMMANDS, split_settings
from stepladder.errors import StepladderError
from stepladder.labs import all_labs
from stepladder.labs.course.grade_answer import same
from stepladder.labs.course.syllabus import all_units, find_unit, labs_in_order
from stepladder.labs.course.unit import Question

DOCS = Path(__file__).parents[3] / "docs"
QUESTIONS = [
    pytest.param(item, id=f"{unit.name}-{item.name}")
    for unit in all_units()
    for item in unit.checklist
    if isinstance(item, Question)
]


def typed() -> set[str]:
    """Every command that the course names."""
    shown = {item.shown_by for unit in all_units() for item in unit.checklist}
    return {words for unit in all_units() for words in unit.commands} | shown - {""}


def test_every_lab_stands_in_one_unit():
    assert sorted(lab.name for lab in labs_in_order()) == sorted(lab.name for lab in all_labs())


@pytest.mark.parametrize("unit", all_units(), ids=lambda unit: unit.name)
def test_a_unit_says_all_that_a_learner_needs(unit):
    assert unit.goal and unit.takeaways and unit.checklist and 1 <= unit.hours <= 10
    assert all((DOCS / page).is_file() for page in unit.reading)
    assert len({item.name for item in unit.checklist}) == len(unit.checklist)
    assert unit.labs or unit.commands


@pytest.mark.parametrize("command", sorted(typed()))
def test_a_command_of_the_course_can_be_typed(command):
    program, name, *words = shlex.split(command)
    if program == "python":
        compile(words[0], "command", "exec")
        return
    assert program == "stepladder" and name in COMMANDS
    parser: argparse.ArgumentParser = CommandParser(prog=name, allow_abbrev=False)
    importlib.import_module(f"stepladder.cli.commands.{name}").configure(parser)
    parser.parse_args(split_settings(words)[0])


@pytest.mark.parametrize("question", QUESTIONS)
def test_the_right_answer_is_computed_and_no_trap_is_right(question):
    right = question.right()
    assert right in question.choices if question.choices else float(right) > 0
    said = [trap.says for trap in question.traps]
    assert len(set(said)) == len(said)
    for trap in question.traps:
        assert not same(question, trap.value(), right), trap.says
        if question.choices:
            assert trap.value() in question.choices


def test_a_unit_that_is_not_there_names_the_nearest():
    with pytest.raises(StepladderError, match="there is no unit called 'memry'. Did you mean 'mem"):
        find_unit("memry")
