"""Every sentence that is raised on purpose is read by a test.

For each error made in a source file, three words in a row of its problem must stand in some test.
It cannot tell that the test reaches that very line, only that nobody wrote a message and never
looked at it.
"""

import ast
import re
from pathlib import Path

HERE = Path(__file__).parents[1]
ROOT = HERE.parent / "src" / "stepladder"
FILES = sorted(ROOT.rglob("*.py"))
ERRORS = r"(Plan|Model|Data|World|Record|Training|Stepladder)Error|NonFinite|OutOfMemory|Unproven"


def literals(node: ast.expr) -> list[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value]
    if isinstance(node, ast.JoinedStr):
        return [text for part in node.values for text in literals(part)]
    if isinstance(node, ast.BinOp):
        return literals(node.left) + literals(node.right)
    return []


def sentences(source: str) -> list[tuple[int, str]]:
    """The line and the longest literal stretch of each error's problem."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
            continue
        if not re.fullmatch(ERRORS, node.func.id) or len(node.args) < 2:
            continue
        longest = max(literals(node.args[1]), key=len, default="")
        if len(longest.split()) >= 3:  # fewer would be found anywhere
            found.append((node.lineno, longest))
    return found


def squeeze(text: str) -> str:
    """Text with what only the writing of a test adds taken out: joints, escapes, patterns."""
    return re.sub(r"""["'\\\s]|f(?=["'])""", "", text)


TESTS = squeeze("".join(path.read_text() for path in sorted(HERE.rglob("test_*.py"))))


def is_read(words: list[str], tests: str) -> bool:
    runs = [squeeze("".join(words[index : index + 3])) for index in range(len(words) - 2)]
    return any(run in tests for run in runs)


def unread(source: str, tests: str) -> list[str]:
    return [
        f"line {line}: {words.strip()}"
        for line, words in sentences(source)
        if not is_read(words.split(), tests)
    ]


def test_every_sentence_that_is_raised_is_read():
    found = {str(path.relative_to(ROOT)): unread(path.read_text(), TESTS) for path in FILES}
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_a_sentence_nobody_reads_is_seen():
    source = 'raise PlanError("a", f"{x} is a sentence that stands in {y} no test", "Way out.")'
    assert unread(source, "") == ["line 1: is a sentence that stands in"]
    assert unread(source, squeeze('match="is a sentence " "that stands in"')) == []
