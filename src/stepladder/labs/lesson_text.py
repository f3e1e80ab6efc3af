"""One lesson file, two texts: the learner's starter and our solution.

A lesson is a file that runs. The learner's parts are marked in it:

    # >>> Say what to write here; a second line
    # >>> may go on.
    the_right = lines()
    # <<< what_stands = there_first

The starter has a TODO with the same words and what follows the closing marks instead of our lines;
the solution has our lines with the words as a comment. So the two cannot drift apart.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

OPEN, CLOSE = "# >>>", "# <<<"


def starter(source: str) -> str:
    """The text the learner begins with."""
    lines: list[str] = []
    inside = first = False
    for indent, mark, words, line in marked(source):
        if mark == OPEN:
            first, inside = not inside, True
            lines.append(f"{indent}# {'TODO: ' if first else '      '}{words}")
        elif mark == CLOSE:
            inside = False
            if words:
                lines.append(indent + words)
        elif not inside:
            lines.append(line)
    return "\n".join(lines) + "\n"


def solution(source: str) -> str:
    """The text as we would write it."""
    lines = [
        f"{indent}# {words}" if mark == OPEN else line
        for indent, mark, words, line in marked(source)
        if mark != CLOSE
    ]
    return "\n".join(lines) + "\n"


def marked(source: str) -> Iterator[tuple[str, str, str, str]]:
    """Each line with its indent, its mark if it has one, and the words behind the mark."""
    for line in source.splitlines():
        found = re.fullmatch(rf"( *)({OPEN}|{CLOSE})(?: (.*))?", line)
        yield (found[1], found[2], found[3] or "", line) if found else ("", "", "", line)


def parts_left(text: str) -> list[tuple[int, str]]:
    """Lines of a learner's file that still say TODO, with what is to do."""
    found = re.finditer(r"^ *# TODO: (.*(?:\n *#       .*)*)$", text, re.MULTILINE)
    return [
        (text.count("\n", 0, match.start()) + 1, re.sub(r"\n *#  +", " ", match[1]))
        for match in found
    ]


def claim(source: str) -> str:
    """The paragraph of a lesson's docstring that says what it shows."""
    paragraphs = (ast.get_docstring(ast.parse(source)) or "").split("\n\n")
    said = [text for text in paragraphs if text.startswith("Claim: ")]
    return " ".join("".join(said).removeprefix("Claim: ").split())
