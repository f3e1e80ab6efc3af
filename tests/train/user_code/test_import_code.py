"""What a user named is imported as Python would, and what fails there is told in one line."""

import pytest

from stepladder.errors import StepladderError
from stepladder.plan.reference import Reference
from stepladder.train.user_code.import_code import call_named, find_function, find_named

OWN = """\
import torch
from dataclasses import dataclass
from own_sibling import WIDTH

seven = 7


@dataclass
class Size:
    width: int = WIDTH


def make():
    from own_later import LATER
    return Size(), LATER


def breaks():
    return inner(torch.zeros(5))


def inner(x):
    return torch.nn.Linear(2, 3)(x)
"""


@pytest.fixture(autouse=True)
def files(folder):
    (folder / "code").mkdir()
    (folder / "code" / "own.py").write_text(OWN)
    (folder / "code" / "own_sibling.py").write_text("WIDTH = 5\n")
    (folder / "code" / "own_later.py").write_text("LATER = 6\n")
    (folder / "own_module.py").write_text("def make():\n    return 8\n")
    (folder / "own_broken.py").write_text("\nimport own_missing\n")
    (folder / "own_typo.py").write_text("def make(:\n")


def test_a_file_imports_the_files_beside_it_and_is_imported_once(folder):
    size, later = call_named(Reference("code/own.py", "make"), "model")
    assert (size.width, later) == (5, 6)
    assert type(size) is find_named(Reference(str(folder / "code/own.py"), "Size"), "sample")


def test_files_of_one_name_in_two_folders_are_two(folder):
    (folder / "own.py").write_text("def make():\n    return 9\n")
    first, second = (Reference(place, "make") for place in ("code/own.py", "own.py"))
    assert call_named(first, "model")[1] == 6
    assert call_named(second, "model") == 9


def test_a_module_is_found_in_the_working_folder(folder):
    assert call_named(Reference("own_module", "make"), "model") == 8


@pytest.mark.parametrize(
    ("place", "name", "message"),
    [
        ("code/own.py", "mak", "data: code/own.py has no 'mak'. Did you mean 'make'?"),
        (
            "code/own_sibling.py",
            "make",
            "data: code/own_sibling.py has no 'make'. Name one that it has.",
        ),
        (
            "code/own.py",
            "seven",
            "data: code/own.py:seven is of type int, which cannot be called. "
            "Name a function or a class.",
        ),
        (
            "nowhere.py",
            "make",
            "data: there is no file nowhere.py. Write the path to it: path/file.py:make.",
        ),
        ("os", "mkdir", "data: 'os' is a module of Python's own. Name one of yours."),
        (
            "own_modul.inner",
            "make",
            "data: there is no module 'own_modul', neither installed nor in this folder. "
            "Check its name.",
        ),
        (
            "own_broken",
            "make",
            "data: own_broken cannot be imported (ModuleNotFoundError: No module named "
            "'own_missing'; own_broken.py:2: import own_missing). Mend it.",
        ),
        (
            "own_broken.py",
            "make",
            "data: own_broken.py cannot be imported (ModuleNotFoundError: No module named "
            "'own_missing'; own_broken.py:2: import own_missing). Mend it.",
        ),
        (
            "own_typo.py",
            "make",
            "data: own_typo.py cannot be imported (SyntaxError: invalid syntax "
            "(own_typo.py, line 1)). Mend it.",
        ),
    ],
)
def test_what_cannot_be_found_is_told_in_a_line(folder, place, name, message):
    with pytest.raises(StepladderError) as caught:
        find_function(Reference(place, name), "data")
    assert str(caught.value) == message


def test_an_error_in_the_users_function_shows_their_own_last_line(folder):
    with pytest.raises(StepladderError) as caught:
        call_named(Reference("code/own.py", "breaks"), "model")
    assert str(caught.value) == (
        "model: code/own.py:breaks failed (RuntimeError: mat1 and mat2 shapes cannot be multiplied "
        "(1x5 and 2x3); own.py:23: return torch.nn.Linear(2, 3)(x)). Mend it."
    )
