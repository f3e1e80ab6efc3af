"""The way through the labs, from the first tensor to a cluster.

With no word it lists the units and how far you are. A unit's name shows its goal, what to read and
do, and what to be able to answer at its end; next is the first that is not done. --answer
ITEM=VALUE grades an answer: the right one is computed by the planner, and is kept nowhere.
"""

from __future__ import annotations

import argparse


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("unit", nargs="?", metavar="UNIT", help="a unit's name, or next")
    parser.add_argument(
        "--answer",
        action="append",
        metavar="ITEM=VALUE",
        help="an answer to the unit's checklist; as often as you like",
    )
    parser.add_argument("--json", action="store_true")


def run(options: argparse.Namespace) -> int:
    from stepladder.cli.learning import answer_unit, show_course
    from stepladder.labs.course.course_notebook import CourseNotebook

    book = CourseNotebook()
    unit = options.unit and show_course.find(options.unit, book)
    if unit is None:
        show_course.refuse_answers(options)
        return show_course.list_units(options, book)
    show = answer_unit.answer if options.answer else show_course.show_unit
    return show(unit, options, book)
