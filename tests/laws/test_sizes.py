"""Files and functions stay short enough to read, and no drawer opens."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "src" / "stepladder"
FILES = sorted(ROOT.rglob("*.py"))
DRAWERS = {"utils", "util", "helpers", "common", "misc", "base", "core"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_stays_under_300_lines(path):
    assert len(path.read_text().splitlines()) <= 300


def lines_of(node: ast.FunctionDef) -> int:
    """Lines of a function without its docstring: an example must not cost it code."""
    documented = node.body[0] if ast.get_docstring(node) else None
    words = documented.end_lineno - documented.lineno + 1 if documented else 0
    return node.end_lineno - node.lineno + 1 - words


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_function_stays_under_50_lines(path):
    long = [
        f"{node.name}: {lines_of(node)} lines"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and lines_of(node) > 50
    ]
    assert long == []


def test_a_docstring_does_not_count_and_code_does():
    (node,) = ast.parse('def f():\n    """One.\n\n    Two.\n    """\n    return 1\n').body
    assert lines_of(node) == 2


def test_there_is_no_drawer():
    names = {part.removesuffix(".py") for path in FILES for part in path.relative_to(ROOT).parts}
    assert not names & DRAWERS
