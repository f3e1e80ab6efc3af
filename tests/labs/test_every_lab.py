"""Every lab's starter fails, every solution passes, and each named mistake is told apart."""

import importlib
import pkgutil
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import stepladder.labs.checks
from stepladder.labs import all_labs, claim, judge, parts_left, solution, starter
from stepladder.labs.grading.finding import Finding
from stepladder.labs.lesson_text import CLOSE, OPEN, parts
from tests.soak import soak_after

CHECKS = Path(stepladder.labs.checks.__file__).parent
LABS = {lab.name: lab for lab in all_labs()}
MISTAKES = [
    (lab.name, mistake)
    for lab in all_labs()
    for mistake in importlib.import_module(
        f"stepladder.labs.checks.{lab.course_folder}.check_{lab.stem}"
    ).MISTAKES
]


def answers(name: str, folder: Path, text: str) -> Iterator[Finding]:
    """What a check of this text finds, one finding after the other; it ends where nobody reads."""
    path = folder / f"{LABS[name].stem}.py"
    path.write_text(text)
    return judge(LABS[name], path, limit_seconds=120)


def answer(name: str, folder: Path, text: str) -> list[Finding]:
    return list(answers(name, folder, text))


def source(name: str) -> str:
    return LABS[name].lesson.read_text()


def one_each(mistakes: list[tuple[str, Any]]) -> list[Any]:
    """Of every lab the first mistake; the others are for the soak."""
    by_lab = [[one for one in mistakes if one[0] == name] for name in LABS]
    return [case for cases in by_lab for case in soak_after(cases)]


def every_fourth(names: Iterable[str]) -> list[Any]:
    """Every fourth lab, of each course some; the others are for the soak, but for a mistake.

    The solution of the lab whose node fails takes ten seconds of processor: it is for the soak, and
    a mistake in it is told apart here.
    """
    first = [name for name in list(names)[::4] if name != "node-failure"]
    return soak_after([*first, *(name for name in names if name not in first)], gate=len(first))


@pytest.mark.parametrize("name", soak_after(LABS, gate=4))
def test_a_starter_fails_its_check_and_can_be_run(name, tmp_path):
    text = starter(source(name))
    to_find = not any(part.goal for part in parts(source(name)))
    assert parts_left(text) or to_find, "no part is left to the learner"
    found = answer(name, tmp_path, text)
    assert not all(finding.passed for finding in found)
    assert found[0].claim != "Your file can be run.", found[0].message
    assert not any("could not be used" in finding.message for finding in found), found


@pytest.mark.parametrize("name", every_fourth(LABS))
def test_a_solution_passes_its_check(name, tmp_path):
    found = answer(name, tmp_path, solution(source(name)))
    assert [finding for finding in found if not finding.passed] == []
    assert len(found) >= 2


@pytest.mark.parametrize(
    ("name", "mistake"), one_each(MISTAKES), ids=lambda one: getattr(one, "name", one)
)
def test_a_common_mistake_gets_its_own_message(name, mistake, tmp_path):
    text = solution(source(name))
    assert text.count(mistake.right) == 1, "the right lines stand in the solution just once"
    said = []
    with closing(answers(name, tmp_path, text.replace(mistake.right, mistake.wrong))) as found:
        for finding in found:
            said += [finding.message] if not finding.passed else []
            if said and mistake.says in said[-1]:
                return  # what other checks make of it takes a minute, for all labs together
    raise AssertionError(said)


@pytest.mark.parametrize("name", LABS)
def test_a_lesson_says_its_claim_its_library_and_its_mistakes(name):
    text, lab = source(name), LABS[name]
    assert claim(text)
    said = " ".join(text.split('"""')[1].split())
    assert lab.library.removeprefix("stepladder.").split(".")[-1] in said
    mine = [mistake for owner, mistake in MISTAKES if owner == name]
    assert len({mistake.says for mistake in mine}) == len(mine) >= 3
    for mistake in mine:
        assert f"- {mistake.name}" in said


@pytest.mark.parametrize("name", LABS)
def test_a_lesson_is_20_to_80_lines_of_code(name):
    code = [
        line
        for line in "".join(source(name).split('"""')[2:]).splitlines()
        if line.strip() and not line.strip().startswith("#")
    ]
    assert 20 <= len(code) <= 80, len(code)
    assert OPEN not in solution(source(name)) and CLOSE not in starter(source(name))


@pytest.mark.parametrize("name", LABS)
def test_the_library_that_does_it_properly_exists_and_the_check_uses_it(name):
    lab = LABS[name]
    last = lab.library.rpartition(".")[2]
    assert pkgutil.resolve_name(lab.library)
    checks = Path(CHECKS / lab.course_folder / f"check_{lab.stem}.py").read_text()
    assert last in checks.split("MISTAKES")[-1], f"the check never calls {lab.library}"
