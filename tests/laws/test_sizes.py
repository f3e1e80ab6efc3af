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


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_function_stays_under_50_lines(path):
    long = [
        f"{node.name}: {node.end_lineno - node.lineno + 1} lines"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and node.end_lineno - node.lineno + 1 > 50
    ]
    assert long == []


def test_there_is_no_drawer():
    names = {part.removesuffix(".py") for path in FILES for part in path.relative_to(ROOT).parts}
    assert not names & DRAWERS
