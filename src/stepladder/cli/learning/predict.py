"""`stepladder lab predict`: a number that is said before it is measured."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from stepladder.cli.results.tables import as_json, cell
from stepladder.errors import StepladderError

from .wrapped import wrapped

if TYPE_CHECKING:
    from stepladder.labs.lab import Lab
    from stepladder.labs.notebook import LabNotebook


def predict(lab: Lab, options: argparse.Namespace) -> int:
    """Keep the learner's number until it is measured."""
    from stepladder.labs.notebook import LabNotebook

    value = number(lab, None if options.file is None else str(options.file))
    LabNotebook().predict(lab, value)
    if options.json:
        as_json({"lab": lab.name, "predicted": value, "question": words_of(lab)})
    else:
        print(wrapped(f"Predicted: {value:g}. {words_of(lab)}"))
        print(f"'stepladder lab run {lab.name}' measures it, and so does a check that passes.")
    return 0


def number(lab: Lab, text: str | None) -> float:
    try:
        return float(text or "")
    except ValueError:
        said = "no number" if text is None else f"'{text}', which is no number"
        raise StepladderError("predict", f"was given {said}", words_of(lab)) from None


def words_of(lab: Lab) -> str:
    """What is to be predicted."""
    from stepladder.labs.lesson_text import question

    return question(lab.lesson.read_text(encoding="utf-8")).words


def ask_first(lab: Lab, options: argparse.Namespace, book: LabNotebook) -> None:
    """Have the learner predict before anything is measured: by --predict, or on a terminal."""
    if options.predict is not None:
        book.predict(lab, number(lab, options.predict))
        return
    asked = prediction(lab, book) is None and "measured" not in book.page(lab)
    if not asked or options.json or not (sys.stdin.isatty() and sys.stdout.isatty()):
        return
    said = input(
        f"{wrapped(f'Predict first. {words_of(lab)}')}\nA number, or Enter to go on without: "
    ).strip()
    if said:
        book.predict(lab, number(lab, said))


def prediction(lab: Lab, book: LabNotebook) -> float | None:
    return book.page(lab).get("predicted")


def compared(lab: Lab, book: LabNotebook) -> str:
    """The prediction beside what was measured; nothing where there is none."""
    error = book.prediction_error(lab)
    if error is None:
        return ""
    page = book.page(lab)
    said, found = cell(page["predicted"]), cell(page["measured"])
    off = f"{error:.0%} off" if page["measured"] else f"{error:.3g} off"
    return f"Predicted {said}, measured {found}: {off}."
