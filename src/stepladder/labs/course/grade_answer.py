"""Grading one answer of a checklist against the value that is computed now."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from stepladder.errors import StepladderError, nearest

from .unit import Answer, HandIn, Item, Question, Unit

DIGITS = r"[-+]?(?:(?:\d{1,3}(?:[,_]\d{3})+|\d+)\.?\d*|\.\d+)(?:e[-+]?\d+)?"
NUMBER = re.compile(
    rf"(?P<number>{DIGITS})(?:\s*(?P<sign>/|\^|\*\*)\s*(?P<second>{DIGITS}))?\s*(?P<unit>.*)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Graded:
    """What became of an answer."""

    item: str
    given: str
    passed: bool
    said: str = ""  # what is wrong with it


def find_item(unit: Unit, name: str) -> Item:
    """The item of this name in a unit's checklist, or a line with the nearest one."""
    items = {item.name: item for item in unit.checklist}
    if name not in items:
        problem = f"{unit.name} has no item called '{name}'"
        raise StepladderError("answer", problem, nearest(name, items))
    return items[name]


def grade_answer(unit: Unit, text: str) -> Graded:
    """Grade `ITEM=VALUE`."""
    name, equals, value = text.partition("=")
    if not equals:
        raise StepladderError("answer", f"'{text}' has no '='", "Write ITEM=VALUE.")
    item = find_item(unit, name.strip())
    said = item.problem(value) if isinstance(item, HandIn) else wrong(item, value.strip())
    return Graded(item.name, value.strip(), not said, said)


def wrong(question: Question, text: str) -> str:
    """What is wrong with an answer; nothing if it is right."""
    given = read(question, text)
    if same(question, given, question.right()):
        return ""
    for trap in question.traps:
        if same(question, given, trap.value()):
            return f"{trap.says}."
    return "That is not it."


def read(question: Question, text: str) -> Answer:
    """The answer as a number or as one of the choices."""
    if question.choices:
        text = text.lower()
        if text not in question.choices:
            problem = f"'{text}' is none of the choices"
            raise StepladderError(question.name, problem, f"Use {', '.join(question.choices)}.")
        return text
    found = NUMBER.fullmatch(text)
    number = value(found) if found else None
    if found is None or number is None or re.match(r"[,.\d]", found["unit"]):
        remedy = f"Write it as 1234.5 {question.unit}".rstrip() + "; 3/4 and 2^-7 are numbers, too."
        raise StepladderError(question.name, f"'{text}' is not a number", remedy)
    if found["unit"] not in ("", question.unit):
        remedy = f"It counts {question.unit}." if question.unit else "It is a number alone."
        raise StepladderError(question.name, f"'{found['unit']}' is not its unit", remedy)
    return number


def value(found: re.Match[str]) -> float | None:
    """What is typed: a number, a fraction or a power; None where it has no value."""
    first, second = (float(re.sub("[,_]", "", found[name] or "1")) for name in ("number", "second"))
    try:
        number = first / second if found["sign"] == "/" else first**second
    except (ZeroDivisionError, OverflowError):
        return None
    return number if isinstance(number, float) and math.isfinite(number) else None


def same(question: Question, given: Answer, wanted: Answer) -> bool:
    """Whether an answer is this one, within what the question allows."""
    if isinstance(given, str) or isinstance(wanted, str):
        return given == wanted
    return math.isclose(given, wanted, rel_tol=max(question.within, 1e-9))
