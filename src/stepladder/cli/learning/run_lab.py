"""`stepladder lab run` and `lab race`: our numbers with their picture, and what solutions cost."""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from stepladder.cli.results.tables import as_json, percent, size, table
from stepladder.errors import RecordError

from .learner_file import learner_file
from .predict import ask_first, compared
from .wrapped import wrapped

if TYPE_CHECKING:
    from stepladder.labs.lab import Lab

COSTS = {"time": "seconds", "bytes": "bytes", "error": "error"}  # what a race is about


def make_numbers(lab: Lab, options: argparse.Namespace) -> int:
    from stepladder.labs import claim
    from stepladder.labs.grading.examine import numbers
    from stepladder.labs.notebook import LabNotebook

    from .lab_plots import draw

    book = LabNotebook()
    ask_first(lab, options, book)
    rows = numbers(lab)
    book.note_measured(lab, rows)
    page = book.page(lab)
    picture = draw(lab, rows, options.plot) if lab.picture else None
    if options.json:
        said = {"predicted": page.get("predicted"), "measured": page.get("measured")}
        as_json({"lab": lab.name, "rows": rows, "plot": picture and str(picture), **said})
        return 0
    print(wrapped(f"Claim: {claim(lab.lesson.read_text(encoding='utf-8'))}") + "\n")
    columns = list(dict.fromkeys(column for row in rows for column in row))
    table(lab.title, columns, [[row.get(column, "") for column in columns] for row in rows])
    if sentence := compared(lab, book):
        print(sentence)
    if picture:
        print(f"Picture: {picture}")
    return 0


def race_solutions(lab: Lab, options: argparse.Namespace) -> int:
    """The learner's solution against ours and those before it."""
    from stepladder.labs import judge, solution
    from stepladder.labs.grading.race import race
    from stepladder.labs.notebook import OURS, LabNotebook

    path = learner_file(lab, options.file)
    limit = options.limit or max(60.0, 20.0 * lab.seconds)
    if not all(one.passed for one in judge(lab, path, limit_seconds=limit, quiet=True)):
        remedy = f"'stepladder lab check {lab.name} {path}' says why."
        raise RecordError("race", f"{path} does not pass its checks yet", remedy)
    book = LabNotebook()
    with TemporaryDirectory() as folder:
        ours = Path(folder) / path.name
        ours.write_text(solution(lab.lesson.read_text(encoding="utf-8")), encoding="utf-8")
        entries = {OURS: ours, options.who or path.stem: path}
        for who, file in entries.items():
            book.note_race(lab, who, race(lab, file, limit_seconds=limit))
    board = book.board(lab, by=COSTS[options.by])
    if options.json:
        as_json({"lab": lab.name, "by": options.by, "board": board})
        return 0
    columns = ["", "who", "processor s", "memory", "prediction off"]
    rows = [
        [place, row["who"], round(row["seconds"], 3), size(row["bytes"]), percent(row["error"])]
        for place, row in enumerate(board, start=1)
    ]
    table(f"{lab.title}, by {options.by}", columns, rows)
    return 0
