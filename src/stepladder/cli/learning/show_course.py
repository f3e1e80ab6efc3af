"""`stepladder course`: the units and how far one is, and what a unit asks for."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from stepladder.cli.results.tables import as_json, table
from stepladder.errors import StepladderError

from .wrapped import wrapped

if TYPE_CHECKING:
    from stepladder.labs.course.course_notebook import CourseNotebook, Progress
    from stepladder.labs.course.unit import Item, Unit


ALL_DONE = "The course is done; 'stepladder lab next' has the bonus labs that are left."


def find(name: str, book: CourseNotebook) -> Unit | None:
    """The unit of this name; of `next`, the first that is not done, if there is one."""
    from stepladder.labs.course.syllabus import all_units, find_unit

    if name != "next":
        return find_unit(name)
    return next((unit for unit in all_units() if not book.progress(unit).done), None)


def refuse_answers(options: argparse.Namespace) -> None:
    if options.answer:
        raise StepladderError(
            "answer", "no unit is named", f"stepladder course UNIT --answer {options.answer[0]}"
        )


def list_units(options: argparse.Namespace, book: CourseNotebook) -> int:
    from stepladder.labs.course.syllabus import PARTS, all_units

    if options.json:
        as_json({"units": [as_words(unit, book) for unit in all_units()]})
        return 0
    for number, part in enumerate(PARTS, start=1):
        rows = [row(unit, book.progress(unit)) for unit in part.units]
        columns = ["unit", "about", "hours", "labs", "answers", "state"]
        table(f"Part {number}: {part.title}", columns, rows, ["unit"])
    done = sum(book.progress(unit).done for unit in all_units())
    hours = sum(unit.hours for unit in all_units())
    print(f"{done} of {len(all_units())} units are done, of about {hours:g} hours in all.")
    print("Go on with 'stepladder course next'." if done < len(all_units()) else ALL_DONE)
    return 0


def row(unit: Unit, progress: Progress) -> list[object]:
    state = "done" if progress.done else "begun" if progress.begun else ""
    labs = f"{progress.labs_done} of {progress.labs}" if progress.labs else ""
    return [
        unit.name, unit.title, unit.hours, labs,
        f"{progress.items_done} of {progress.items}", state,
    ]  # fmt: skip


def show_unit(unit: Unit, options: argparse.Namespace, book: CourseNotebook) -> int:
    if options.json:
        as_json(as_words(unit, book))
        return 0
    print(wrapped(f"{unit.title}, about {unit.hours:g} hours. {unit.goal}"))
    if unit.reading:
        print("\n" + wrapped("Read: " + ", ".join(f"docs/{page}" for page in unit.reading)))
    print("\nDo:")
    for exercise in unit.exercises:
        mark = " " if not exercise.lab else "x" if book.lab_done(exercise.lab) else "-"
        bonus = " (bonus)" if exercise.bonus else ""
        print(wrapped(f"{exercise.about}{bonus}", f"  {mark} "))
        for command in commands(exercise.lab, exercise.command):
            print(f"      {command}")
    print("\nTake away:")
    for sentence in unit.takeaways:
        print(wrapped(sentence, "  * "))
    print("\nReady when you can answer:")
    for item in unit.checklist:
        show_item(item, book, unit)
    print(f"\nAnswer with: stepladder course {unit.name} --answer ITEM=VALUE")
    return 0


def commands(lab: str, command: str) -> list[str]:
    return [words for words in (f"stepladder lab start {lab}" if lab else "", command) if words]


def show_item(item: Item, book: CourseNotebook, unit: Unit) -> None:
    mark = "x" if book.answer(unit, item.name).get("passed") else "-"
    print(wrapped(f"{item.name}: {item.ask}{counted(item)}", f"  {mark} "))


def counted(item: Item) -> str:
    """What an answer is given in."""
    if choices := getattr(item, "choices", ()):
        return f" [{', '.join(choices[:-1])} or {choices[-1]}]"
    unit = getattr(item, "unit", "")
    return f" [{unit}]" if unit else ""


def as_words(unit: Unit, book: CourseNotebook) -> dict[str, Any]:
    """A unit with its progress, without the functions that know the answers."""
    progress = book.progress(unit)
    return {
        "name": unit.name,
        "title": unit.title,
        "goal": unit.goal,
        "hours": unit.hours,
        "exercises": unit.exercises,
        "reading": unit.reading,
        "labs": {name: book.lab_done(name) for name in unit.labs},
        "bonus_labs": {name: book.lab_done(name) for name in unit.bonus_labs},
        "commands": unit.commands,
        "takeaways": unit.takeaways,
        "checklist": [item_words(item, book, unit) for item in unit.checklist],
        "done": progress.done,
    }


def item_words(item: Item, book: CourseNotebook, unit: Unit) -> dict[str, Any]:
    known = book.answer(unit, item.name)
    return {
        "name": item.name,
        "ask": item.ask,
        "unit": getattr(item, "unit", ""),
        "choices": getattr(item, "choices", ()),
        "passed": bool(known.get("passed")),
        "tries": known.get("tries", 0),
    }
