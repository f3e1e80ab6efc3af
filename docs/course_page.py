"""Writes the units of docs/course.md: `python docs/course_page.py`.

A test holds the page to the units, so page and command say the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from stepladder.labs.course.syllabus import PARTS
from stepladder.labs.course.unit import CoursePart, Exercise, Item, Question, Unit

DOCS = Path(__file__).parent
PAGE = DOCS / "course.md"
UNITS = re.compile(r"(?<=<!-- units -->\n).*?(?=<!-- end -->)", re.DOTALL)


def filled(text: str) -> str:
    """The page with every unit written anew."""
    units = "\n".join([overview(), *(part(number, one) for number, one in numbered())])
    return UNITS.sub(lambda _: units, text)


def numbered() -> Iterable[tuple[int, CoursePart]]:
    return enumerate(PARTS, start=1)


def table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    heads = list(columns)
    lines = [heads, ["---"] * len(heads), *map(list, rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def overview() -> str:
    rows = [
        (one.title, f"[{unit.name}](#{anchor(unit)})", unit.goal, f"{unit.hours:g}")
        for _, one in numbered()
        for unit in one.units
    ]
    hours = sum(unit.hours for _, one in numbered() for unit in one.units)
    return table(("part", "unit", "goal", f"hours ({hours:g})"), rows)


def anchor(unit: Unit) -> str:
    """What the heading of a unit is reached by."""
    kept = "".join(letter for letter in heading(unit).lower() if letter.isalnum() or letter in " -")
    return "-".join(kept.split())


def heading(unit: Unit) -> str:
    return f"{unit.title} ({unit.name})"


def part(number: int, one: CoursePart) -> str:
    return "\n".join([f"## Part {number}: {one.title}\n", *map(section, one.units)])


def section(unit: Unit) -> str:
    rows = map(exercise, unit.exercises)
    lines = [
        f"### {heading(unit)}\n",
        f"{unit.goal} About {unit.hours:g} hours.\n",
        table(("exercise", "lab", "command", "page"), rows),
        "Take away:\n",
        *(f"- {sentence}" for sentence in unit.takeaways),
        "\nReady when you can answer:\n",
        *map(asked, unit.checklist),
        "",
    ]
    return "\n".join(lines)


def exercise(one: Exercise) -> list[str]:
    return [
        f"{one.about}{' (bonus)' if one.bonus else ''}",
        f"`{one.lab}`" if one.lab else "",
        f"`{one.command}`" if one.command else "",
        f"[{title(one.page)}]({one.page})" if one.page else "",
    ]


def title(name: str) -> str:
    """A page's first heading."""
    return (DOCS / name).read_text(encoding="utf-8").split("\n", 1)[0].removeprefix("# ")


def asked(item: Item) -> str:
    choices = item.choices if isinstance(item, Question) else ()
    given = f" ({', '.join(choices[:-1])} or {choices[-1]})" if choices else ""
    unit = f" ({item.unit})" if isinstance(item, Question) and item.unit else ""
    return f"- `{item.name}`: {item.ask}{given}{unit}"


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
