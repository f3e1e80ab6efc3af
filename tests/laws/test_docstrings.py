"""Every exported name says what it is, and every public one shows an example that is run."""

import doctest
import importlib
import inspect
from pathlib import Path
from types import ModuleType

import pytest

import stepladder

ROOT = Path(stepladder.__file__).parent
DOORS = sorted(
    ".".join(("stepladder", *path.parent.relative_to(ROOT).parts))
    for path in ROOT.rglob("__init__.py")
    if path.parent != ROOT
)
RULES = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
PROOFS = ("parity", "precision", "resume")  # of `sl.verify`, which is a package
LOOP = ("BestCheckpoint", "EMA", "EarlyStopping")  # of `stepladder.train`, for users' loops
PUBLIC = [
    *stepladder.HOMES,
    *(f"verify.{each}" for each in PROOFS),
    *(f"train.{each}" for each in LOOP),
]


def public(name: str) -> object:
    """What is called as `sl.name`; for a package that can be called, its function."""
    package, _, inner = name.partition(".")
    if inner:
        return getattr(importlib.import_module(f"stepladder.{package}"), inner)
    return stepladder.find(name)


def examples(value: object) -> list[doctest.DocTest]:
    module = importlib.import_module(value.__module__)
    name = getattr(value, "__qualname__", "")
    found = doctest.DocTestFinder(recurse=False).find(value, name, module)
    return [one for one in found if one.examples]


def described(value: object) -> bool:
    """Whether somebody wrote what it is: a dataclass without a docstring is given its signature."""
    said = inspect.getdoc(value) or ""
    return bool(said) and not said.startswith(f"{getattr(value, '__name__', '')}(")


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_shows_an_example(name):
    if name == "verify":
        assert described(importlib.import_module("stepladder.verify"))
        return
    assert examples(public(name)), f"{name} has no '>>>' in its docstring"


@pytest.mark.parametrize("name", PUBLIC)
def test_the_example_of_a_public_name_runs(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for example in examples(public(name)) if name != "verify" else ():
        runner = doctest.DocTestRunner(optionflags=RULES)
        runner.run(example)
        assert runner.failures == 0, capsys.readouterr().out


@pytest.mark.parametrize("door", DOORS)
def test_every_name_of_a_door_has_a_docstring(door):
    module = importlib.import_module(door)
    kinds = (type, ModuleType)
    undescribed = [
        name
        for name in getattr(module, "__all__", [])
        if isinstance(getattr(module, name), kinds) or callable(getattr(module, name))
        if not described(getattr(module, name))
    ]
    assert undescribed == []


def test_a_wrong_example_would_be_seen():
    def wrong() -> None:
        """
        >>> 1 + 1
        3
        """

    (example,) = doctest.DocTestFinder().find(wrong, "wrong")
    runner = doctest.DocTestRunner(optionflags=RULES)
    assert runner.run(example, out=lambda text: None).failed == 1
