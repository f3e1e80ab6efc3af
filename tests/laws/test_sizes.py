"""Files and functions stay short enough to read, and no drawer opens."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "src" / "stepladder"
FILES = sorted(ROOT.rglob("*.py"))
DRAWERS = {"utils", "util", "helpers", "common", "misc", "base", "core"}


def test_a_file_stays_under_300_lines():
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in FILES}
    assert {name: lines for name, lines in lengths.items() if lines > 300} == {}


def lines_of(node: ast.FunctionDef) -> int:
    """Lines of a function without its docstring: an example must not cost it code."""
    documented = node.body[0] if ast.get_docstring(node) else None
    words = documented.end_lineno - documented.lineno + 1 if documented else 0
    return node.end_lineno - node.lineno + 1 - words


def test_a_function_stays_under_50_lines():
    long = [
        f"{path.relative_to(ROOT)} {node.name}: {lines_of(node)} lines"
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and lines_of(node) > 50
    ]
    assert long == []


def test_a_docstring_does_not_count_and_code_does():
    (node,) = ast.parse('def f():\n    """One.\n\n    Two.\n    """\n    return 1\n').body
    assert lines_of(node) == 2


def folders() -> list[Path]:
    # Not benchmarks: its scripts are run one by one, and are sorted by subject.
    tests = Path(__file__).parents[1]
    return sorted({path.parent for top in (ROOT, tests) for path in top.rglob("*.py")})


@pytest.mark.parametrize("folder", folders(), ids=lambda path: "/".join(path.parts[-3:]))
def test_a_folder_shows_at_most_15_files(folder):
    names = [path.name for path in folder.glob("*.py") if path.name != "__init__.py"]
    assert len(names) <= 15, sorted(names)


def test_a_file_name_stands_in_at_most_two_packages():
    packages: dict[str, set[str]] = {}
    for path in FILES:
        if path.stem != "__init__" and path.parent != ROOT:
            packages.setdefault(path.stem, set()).add(path.relative_to(ROOT).parts[0])
    assert {stem: found for stem, found in packages.items() if len(found) > 2} == {}


def test_there_is_no_drawer():
    names = {part.removesuffix(".py") for path in FILES for part in path.relative_to(ROOT).parts}
    assert not names & DRAWERS
