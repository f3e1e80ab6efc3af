"""A package's front door lists exactly what it exports, and holds no code."""

import ast
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "src" / "stepladder"
DOORS = sorted(path for path in ROOT.rglob("__init__.py") if path.parent != ROOT)


def name_of(path: Path) -> str:
    return ".".join(("stepladder", *path.parent.relative_to(ROOT).parts))


@pytest.mark.parametrize("path", DOORS, ids=name_of)
def test_a_front_door_is_a_docstring_imports_and_all(path):
    body = ast.parse(path.read_text()).body
    assert isinstance(body[0], ast.Expr), "a docstring first"
    for node in body[1:]:
        assert isinstance(node, ast.Import | ast.ImportFrom | ast.Assign), ast.dump(node)[:80]


@pytest.mark.parametrize("path", DOORS, ids=name_of)
def test_all_is_what_the_door_imports(path):
    imported = {
        alias.asname or alias.name
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    listed = getattr(importlib.import_module(name_of(path)), "__all__", [])
    assert sorted(imported) == sorted(listed)


def test_the_public_names_are_the_contract():
    stepladder = importlib.import_module("stepladder")
    for name in stepladder.__all__:
        assert getattr(stepladder, name) is not None
