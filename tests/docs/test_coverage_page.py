"""docs/coverage.md: its commands can be typed, its links hold, and a row says what it runs."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from .blocks import ROOT
from .site_scripts import load


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "docs"))  # as it is for a script that is run there
        yield load("coverage")


def row(script: ModuleType, **changed: Any) -> Any:
    given = {
        "name": "one",
        "what": "A sum",
        "page": "glossary.md",
        "command": 'python -c "print(1); print(2 + 3)"',
        "shows": r"^\d$",
    }
    return script.Row(**{**given, **changed})


def test_the_page_is_what_its_rows_make(script):
    assert script.problems() == []
    assert script.page_text(script.read_results()) == script.PAGE.read_text()
    assert script.main(["--check"]) == 0


def test_every_part_of_the_course_has_rows(script):
    assert len(script.all_rows()) >= 66
    labs = {lab.name for lab in script.all_labs()}
    assert len(labs & {one.lab for one in script.all_rows()}) > len(labs) / 2


def test_a_row_is_run_and_shows_the_line_it_describes(script):
    found = script.run_row(row(script, shows="5"))
    assert found["output"] == ["1", "5"] and found["command"] == row(script).command
    assert script.shown_lines(row(script, shows="5"), found["output"]) == ["5"]
    assert script.shown_lines(row(script, lines=2), found["output"]) == ["1", "5"]
    before = "python -c \"open('said.txt', 'w').write('of the first')\""
    read = "python -c \"print(open('said.txt').read())\""
    found = script.run_row(row(script, before=before, command=read, shows="of the first"))
    assert found["output"] == ["of the first"]


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"shows": "6"}, "nothing matches '6'"),
        ({"exit_code": 2}, "exit 0, not 2"),
        ({"command": 'python -c "raise SystemExit(3)"'}, "exit 3, not 0"),
        ({"before": 'python -c "raise SystemExit(3)"'}, "exit 3, not 0"),
    ],
)
def test_a_row_that_shows_something_else_is_a_problem(script, changed, says):
    assert says in script.run_row(row(script, **changed))["problem"]


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"page": "no_such_page.md"}, "there is no page no_such_page.md"),
        ({"page": "survival.md#elastics"}, "survival.md has no heading elastics"),
        ({"lab": "dpd"}, "there is no lab dpd"),
        ({"command": "stepladder tain"}, "'stepladder tain' is no command"),
        ({"command": "stepladder plan gpt2 --one x"}, "'--one' is not"),
        ({"command": "python no_such_script.py"}, "there is no no_such_script.py"),
    ],
)
def test_what_is_wrong_with_a_row_is_named_without_running_it(script, monkeypatch, changed, says):
    part = script.Part("A part", (row(script, **changed),))
    monkeypatch.setattr(script, "PARTS", (part,))
    assert any(says in problem for problem in script.problems()), script.problems()


def test_what_a_row_showed_counts_for_the_command_that_was_run(script, monkeypatch, tmp_path):
    monkeypatch.setattr(script, "RESULTS", tmp_path / "coverage.json")
    monkeypatch.setattr(script, "PARTS", (script.Part("A part", (row(script),)),))
    assert script.run_rows([row(script)], {"rows": {}}) == []
    assert list(script.read_results()["rows"]) == ["one"]
    monkeypatch.setattr(script, "PARTS", (script.Part("A part", (row(script, shows="7"),)),))
    assert script.problems() == ["one: nothing of what it printed matches '7'"]
    other = row(script, command='python -c "print(7)"')
    monkeypatch.setattr(script, "PARTS", (script.Part("A part", (other,)),))
    assert script.read_results()["rows"] == {} and script.problems() == []
    assert "| not run yet |" in script.page_text(script.read_results())


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_every_row_shows_what_it_says(script):
    failed = {one.name: script.run_row(one).get("problem") for one in script.all_rows()}
    assert {name: problem for name, problem in failed.items() if problem} == {}
