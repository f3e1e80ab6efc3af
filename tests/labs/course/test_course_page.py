"""The course's page is the one that its units make."""

from stepladder.labs.course.syllabus import all_units
from tests.docs.site_scripts import load

SCRIPT = load("course_page")


def test_the_page_is_up_to_date():
    text = SCRIPT.PAGE.read_text()
    assert SCRIPT.filled(text) == text, "run: python docs/course_page.py"
    changed = text.replace("`views`", "`view`", 1)
    assert SCRIPT.filled(changed) == text != changed


def test_every_exercise_is_mapped_to_a_lab_a_command_or_a_page():
    text = SCRIPT.PAGE.read_text()
    for unit in all_units():
        for one in unit.exercises:
            assert one.lab or one.command or one.page
            assert "| " + " | ".join(SCRIPT.exercise(one)) + " |" in text


def test_an_anchor_is_that_of_its_heading():
    units = {unit.name: unit for unit in all_units()}
    assert SCRIPT.anchor(units["memory"]) == (
        "memory-owners-accumulation-recomputation-offload-memory"
    )
    assert SCRIPT.anchor(units["faults"]) == "faults-checkpoints-restarts-elastic-runs-faults"
