"""A starter and its hints do not say the answer: no expression of our solution stands in them.

Expressions are compared as they are and with their names exchanged, so that `2(n - 1)/n` in a
sentence is found out as `2 * (ranks - 1) / ranks` in the code.
"""

import ast
import re

import pytest

from stepladder.labs import all_labs
from stepladder.labs.lesson_text import CLOSE, OPEN, marked, parts, starter

LABS = {lab.name: lab for lab in all_labs()}
FEWEST = 5  # tokens: less than that is said in passing
SIGNS = str.maketrans({"×": "*", "·": "*", "−": "-", "`": " ", "÷": "/"})
TOKEN = re.compile(r"[A-Za-z_]\w*|\d+(?:\.\d+)?|[^\sA-Za-z0-9_]")
PLAIN = (ast.BinOp, ast.Call, ast.Compare, ast.BoolOp, ast.UnaryOp, ast.ListComp, ast.DictComp)


def tokens(text: str) -> list[str]:
    return TOKEN.findall(text.translate(SIGNS).replace("**", "^"))


def anonymous(words: list[str]) -> list[str]:
    """Names by the order in which they come, signs of multiplication left out."""
    names: dict[str, str] = {}
    return [
        names.setdefault(word, f"name{len(names)}") if word[0].isalpha() else word
        for word in words
        if word != "*"
    ]


def expressions(text: str) -> set[str]:
    """Every expression of a program that is long enough to be an answer."""
    found = {
        ast.unparse(node)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, PLAIN) and not names_a_tool(node)
    }
    return {one for one in found if len(tokens(one)) >= FEWEST}


def names_a_tool(node: ast.AST) -> bool:
    """Whether it is a call of nothing but constants: a hint may say which function helps."""
    given = [*node.args, *node.keywords] if isinstance(node, ast.Call) else [node]
    return all(isinstance(one, ast.Constant) for one in given)


def stands_in(expression: str, text: list[str]) -> bool:
    words = tokens(expression)
    for at in range(len(text) - len(words) + 1):
        if text[at : at + len(words)] == words:
            return True
    formula = anonymous(words)
    if len(formula) < FEWEST + 1 or not any(word.isdigit() for word in formula):
        return False  # without a number any two sentences look alike
    bare = [word for word in text if word != "*"]
    return any(
        anonymous(bare[at : at + len(formula)]) == formula
        for at in range(len(bare) - len(formula) + 1)
    )


def prose(text: str) -> str:
    """The comments and docstrings of a program."""
    tree = ast.parse(text)
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    said = [ast.get_docstring(node) or "" for node in ast.walk(tree) if isinstance(node, kinds)]
    return "\n".join([*said, *re.findall(r"# (.*)", text)])


def given_away(source: str) -> list[str]:
    """Expressions of the solution that the learner can read before writing them."""
    answers = expressions(source) - expressions(starter(source))
    read = [prose(starter(source)), *(hint for part in parts(source) for hint in part.hints)]
    return sorted(one for one in answers if any(stands_in(one, tokens(text)) for text in read))


@pytest.mark.parametrize("name", LABS)
def test_neither_starter_nor_hints_say_the_answer(name):
    assert given_away(LABS[name].lesson.read_text()) == []


@pytest.mark.parametrize("name", LABS)
def test_every_part_has_hints_in_steps(name):
    for part in parts(LABS[name].lesson.read_text()):
        assert part.name and len(part.hints) >= 2, part
        assert len(set(part.hints)) == len(part.hints)


def test_every_mark_belongs_to_a_part():
    for lab in LABS.values():
        marks = [mark for _, mark, _, _ in marked(lab.lesson.read_text()) if mark]
        groups = [mark for mark, before in zip(marks, ["", *marks]) if mark != before]
        assert groups.count(OPEN) == groups.count(CLOSE) == len(parts(lab.lesson.read_text()))


@pytest.mark.parametrize(
    "words",
    [
        "# >>> Half of it: 2 * (ranks - 1) / ranks.",
        "# >>> 2(n − 1)/n of the bytes.",
        "# >>> Some of it.\n    # ??? Write `2 * (ranks - 1) / ranks`.",
    ],
)
def test_an_answer_that_is_given_away_would_be_seen(words):
    lesson = "def f(ranks):\n    {}\n    return 2 * (ranks - 1) / ranks\n    # <<< return 0\n"
    assert given_away(lesson.format(words))
    assert given_away(lesson.format("# >>> What a rank sends.")) == []
