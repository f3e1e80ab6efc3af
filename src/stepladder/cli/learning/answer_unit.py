"""`stepladder course UNIT --answer ITEM=VALUE`: what is right, what is wrong, what is left."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from stepladder.cli.results.tables import as_json

from .wrapped import wrapped

if TYPE_CHECKING:
    from stepladder.labs.course.course_notebook import CourseNotebook
    from stepladder.labs.course.grade_answer import Graded
    from stepladder.labs.course.unit import Unit


def answer(unit: Unit, options: argparse.Namespace, book: CourseNotebook) -> int:
    """Grade every answer before the first is kept: a slip of the pen keeps none.

    What is right is said before it is kept, for those whose folder takes no file.
    """
    from stepladder.labs.course.grade_answer import grade_answer

    graded = [grade_answer(unit, text) for text in options.answer]
    for one in graded if not options.json else ():
        show(one, unit)
    for one in graded:
        book.note(unit, one)
    progress = book.progress(unit)
    passed = all(one.passed for one in graded)
    if options.json:
        as_json({"unit": unit.name, "answers": graded, "passed": passed, "progress": progress})
        return 0 if passed else 1
    left = f"{progress.items_done} of {progress.items} answers"
    labs = f", {progress.labs_done} of {progress.labs} labs" if progress.labs else ""
    print(f"\n{unit.title}: {left}{labs}.{' Done.' if progress.done else ''}")
    return 0 if passed else 1


def show(graded: Graded, unit: Unit) -> None:
    from stepladder.labs.course.grade_answer import find_item

    first = "right   " if graded.passed else "WRONG   "
    print(wrapped(f"{graded.item} = {graded.given}. {graded.said}".rstrip(), first))
    shown_by = find_item(unit, graded.item).shown_by
    if not graded.passed and shown_by:
        print(f"        {shown_by}")
