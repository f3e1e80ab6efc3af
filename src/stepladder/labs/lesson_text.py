"""One lesson file, three texts: the learner's starter, the hints and our solution.

A lesson is a file that runs. The learner's parts are marked in it:

    # >>> Say what must be true here; a second line
    # >>> may go on.
    # ??? A first hint: the question to ask.
    # ??? A second hint; a line that begins with two more spaces
    # ???   goes on with it.
    the_right = lines()
    # <<< what_stands = there_first

The starter has a TODO with the same words and what follows the closing marks instead of our lines;
the solution has our lines with the words as a comment; hints are shown one at a time. So the three
cannot drift apart. Where the opening mark has no words the starter says nothing: the learner is to
find the fault, so it does not list what is often wrong either.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

OPEN, HINT, CLOSE = "# >>>", "# ???", "# <<<"
MARK = re.compile(r"( *)(# >>>|# \?\?\?|# <<<)(?: (.*))?")


@dataclass(frozen=True, slots=True)
class Part:
    """One place of a starter that is left to the learner."""

    name: str  # of what it stands in: a function, Class.method, a constant
    goal: str  # the words of its TODO; none where the place is to be found, too
    hints: tuple[str, ...]  # each says a little more than the one before


@dataclass(frozen=True, slots=True)
class Question:
    """What a learner is asked to predict: words, and the number of the lab's that answers them."""

    words: str
    column: str
    where: tuple[tuple[str, str], ...]  # what else its row says; the last of such rows counts

    def answer(self, rows: Sequence[Mapping[str, Any]]) -> float | None:
        """The number, among the rows that a lab measures."""
        for row in reversed(rows):
            value = row.get(self.column)
            known = isinstance(value, int | float) and not isinstance(value, bool)
            if known and all(str(row.get(name)) == wanted for name, wanted in self.where):
                return float(value)
        return None


def starter(source: str) -> str:
    """The text the learner begins with."""
    lines: list[str] = []
    inside = first = to_find = False
    for indent, mark, words, line in marked(source):
        if mark == OPEN:
            first, inside = not inside, True
            to_find = to_find or not words
            if words:
                lines.append(f"{indent}# {'TODO: ' if first else '      '}{words}")
        elif mark == CLOSE:
            inside = False
            if words:
                lines.append(indent + words)
        elif not inside:
            lines.append(line)
    text = "\n".join(lines) + "\n"
    return re.sub(r"\nOften wrong:\n(?:.+\n)*(?=\"\"\")", "", text) if to_find else text


def solution(source: str) -> str:
    """The text as we would write it."""
    lines = [
        f"{indent}# {words}" if mark == OPEN else line
        for indent, mark, words, line in marked(source)
        if mark not in (HINT, CLOSE) and (mark, words) != (OPEN, "")
    ]
    return "\n".join(lines) + "\n"


def marked(source: str) -> Iterator[tuple[str, str, str, str]]:
    """Each line with its indent, its mark if it has one, and the words behind the mark."""
    for line in source.splitlines():
        found = MARK.fullmatch(line)
        yield (found[1], found[2], found[3] or "", line) if found else ("", "", "", line)


def parts(source: str) -> list[Part]:
    """The learner's parts in their order, each with its hints."""
    found: list[Part] = []
    goal: list[str] = []
    hints: list[str] = []
    number, tree = 0, ast.parse(source)
    for line, (_, mark, words, _) in enumerate(marked(source), start=1):
        if mark == OPEN:
            number = number or line
            goal.append(words)
        elif mark == HINT and words.startswith("  "):
            hints[-1] += f" {words.strip()}"
        elif mark == HINT:
            hints.append(words)
        elif mark == CLOSE and goal:
            found.append(Part(owner(tree, number), " ".join(goal), tuple(hints)))
            number, goal, hints = 0, [], []
    return found


def owner(tree: ast.Module, line: int) -> str:
    """What stands around a line or, outside of all definitions, next after it."""
    for node in tree.body:
        if line > (node.end_lineno or 0) or (names := names_of(node)) == ():
            continue
        inner = [
            method.name
            for method in getattr(node, "body", ())
            if isinstance(node, ast.ClassDef) and isinstance(method, ast.FunctionDef)
            if method.lineno <= line <= (method.end_lineno or 0)
        ]
        return ".".join([names[0], *inner])
    return ""


def names_of(node: ast.stmt) -> tuple[str, ...]:
    """The names that a statement of a module defines; none for an import."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return (node.name,)
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    found: list[str] = []
    for target in targets:
        each = target.elts if isinstance(target, ast.Tuple) else [target]
        found += [name.id for name in each if isinstance(name, ast.Name)]
    return tuple(found)


def given_names(source: str) -> list[str]:
    """Every name that a lesson defines, the learner's parts among them."""
    return [name for node in ast.parse(source).body for name in names_of(node)]


def parts_left(text: str) -> list[tuple[int, str]]:
    """Lines of a learner's file that still say TODO, with what is to do."""
    found = re.finditer(r"^ *# TODO: (.*(?:\n *#       .*)*)$", text, re.MULTILINE)
    return [
        (text.count("\n", 0, match.start()) + 1, re.sub(r"\n *#  +", " ", match[1]))
        for match in found
    ]


def claim(source: str) -> str:
    """The paragraph of a lesson's docstring that says what it shows."""
    return paragraph(source, "Claim: ")


def question(source: str) -> Question:
    """What a lesson's docstring asks to predict: `Predict: words? [column; key = value]`."""
    found = re.fullmatch(r"(.*) \[([^]]*)\]", paragraph(source, "Predict: "))
    assert found, "a lesson asks for a number before it is measured"
    column, *where = found[2].split("; ")
    pairs = [condition.partition(" = ") for condition in where]
    return Question(found[1], column, tuple((name, value) for name, _, value in pairs))


def paragraph(source: str, first: str) -> str:
    """The paragraph of a lesson's docstring that begins so, without its beginning."""
    paragraphs = (ast.get_docstring(ast.parse(source)) or "").split("\n\n")
    said = [text for text in paragraphs if text.startswith(first)]
    return " ".join("".join(said).removeprefix(first).split())
