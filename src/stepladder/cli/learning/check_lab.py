"""`stepladder lab check`: what is right, what is wrong, and a picture of what the code did."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from stepladder.cli.results.tables import as_json
from stepladder.errors import StepladderError

from .learner_file import learner_file
from .predict import ask_first, compared, prediction
from .wrapped import wrapped

if TYPE_CHECKING:
    from stepladder.labs.grading.finding import Finding
    from stepladder.labs.lab import Lab
    from stepladder.labs.notebook import LabNotebook

IN = " " * len("FAILED  ")
LEAST_SECONDS, TIMES = 30.0, 10.0  # of the processor: for any lab, of what the solution takes


def check(lab: Lab, options: argparse.Namespace) -> int:
    from stepladder.labs import judge, parts_left
    from stepladder.labs.notebook import LabNotebook

    limit = limit_of(lab, options)
    path, book = learner_file(lab, options.file), LabNotebook()
    ask_first(lab, options, book)
    found: list[Finding] = []
    for finding in judge(lab, path, limit_seconds=limit, quiet=options.json):
        found.append(finding)
        if not options.json:
            show(finding)
    passed = all(finding.passed for finding in found)
    book.note_check(lab, found)
    own = own_numbers(lab, path, limit, options, book) if passed or options.plot else {}
    left = parts_left(path.read_text(encoding="utf-8"))
    if options.json:
        as_json({"lab": lab.name, "passed": passed, "findings": found, "left": left, **own})
        return 0 if passed else 1
    for sentence in own.values():
        print(sentence)
    if passed:
        print(f"\nPassed. Done properly by {lab.library}. Next: 'stepladder lab next'.")
        return 0
    for where, words in left:
        print(wrapped(f"line {where}: {words}", "to do   "))
    print(f"\nNot yet. Change {path} and check again; 'stepladder lab hint {lab.name}' helps.")
    return 1


def limit_of(lab: Lab, options: argparse.Namespace) -> float:
    limit = max(LEAST_SECONDS, TIMES * lab.seconds) if options.limit is None else options.limit
    if limit < 1:
        raise StepladderError("limit", f"{limit:g} seconds is no time", "Give 1 or more.")
    return limit


def show(finding: Finding) -> None:
    print(wrapped(finding.claim, "passed  " if finding.passed else "FAILED  "), flush=True)
    said = finding.message.splitlines()
    lines = [wrapped(said[0], IN)] if len(said) == 1 else [IN + line for line in said]
    for line in [*lines, *(IN + line for line in finding.marked_digits())]:
        print(line)


def own_numbers(
    lab: Lab, path: Path, limit: float, options: argparse.Namespace, book: LabNotebook
) -> dict[str, str]:
    """What the learner's own run says: of the prediction, and where its picture is."""
    from stepladder.labs.grading.own_run import run_own

    predicted = prediction(lab, book) is not None
    if not (predicted or options.plot):
        return {}
    own = run_own(lab, path, limit_seconds=limit)
    if own.problem:
        return {"picture": f"No picture: {own.problem}."}
    said = {}
    if predicted:
        book.note_measured(lab, own.rows)
        said["predicted"] = compared(lab, book)
    if options.plot:
        from .own_run_plots import draw_own_run

        said["picture"] = f"Picture of your run: {draw_own_run(lab, own, options.plot)}"
    return said
