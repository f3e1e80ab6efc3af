"""`stepladder lab`, `lab next` and `lab solution`: the labs, the next one, and our solutions."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from stepladder.cli.results.tables import as_json, table

if TYPE_CHECKING:
    from stepladder.labs.lab import Lab
    from stepladder.labs.notebook import LabNotebook


def list_labs(options: argparse.Namespace) -> int:
    from stepladder.labs.catalogue.courses import COURSES
    from stepladder.labs.notebook import LabNotebook

    book = LabNotebook()
    if options.json:
        as_json({"courses": COURSES, "progress": book.pages})
        return 0
    for course in COURSES:
        rows = [
            [number, lab.name, book.progress(lab), lab.title, lab.seconds, lab.ranks, lab.library]
            for number, lab in enumerate(course.labs, start=1)
        ]
        columns = ["", "name", "progress", "title", "seconds", "ranks", "done properly by"]
        done = sum(book.progress(lab) == "done" for lab in course.labs)
        table(f"{course.title}: {done} of {len(course.labs)} done", columns, rows, ["name"])
    print("Begin with 'stepladder lab next'; 'stepladder course' is the way through all of them.")
    return 0


def next_lab(options: argparse.Namespace) -> int:
    """The first lab that is not done, in the order of the course's units."""
    from stepladder.labs.course.syllabus import labs_in_order
    from stepladder.labs.notebook import LabNotebook

    book, labs = LabNotebook(), labs_in_order()
    left = [lab for lab in labs if book.progress(lab) != "done"]
    if options.json:
        found = left[0].name if left else None
        as_json({"lab": found, "command": command(left[0], book) if left else None})
        return 0
    if not left:
        print(f"All {len(labs)} labs are done.")
        return 0
    lab = left[0]
    print(f"{lab.title} ({len(labs) - len(left)} of {len(labs)} labs are done)")
    print(f"  {command(lab, book)}")
    return 0


def command(lab: Lab, book: LabNotebook) -> str:
    """What to type next for a lab: it was begun when it was checked once."""
    word = "check" if book.progress(lab) else "start"
    return f"stepladder lab {word} {lab.name}"


def show_solution(lab: Lab, options: argparse.Namespace) -> int:
    from stepladder.labs import solution

    text = solution(lab.lesson.read_text(encoding="utf-8"))
    if options.json:
        as_json({"lab": lab.name, "solution": text})
    else:
        print(text, end="")
    return 0
