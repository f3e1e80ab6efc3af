"""Lessons that run on a laptop and end in a checked number.

With no word it lists them, and next names the one that comes next. start writes a file with parts
to fill in, hint helps with one of them step by step, check examines what you wrote and says what is
wrong with it, run makes the numbers with our solution, solution shows it. predict keeps a number
that you expect before you see it, and race compares what your solution costs with ours and with
those before it. Structure your solution as you like: start --adapter writes a small file that says
which of your names does which part.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from stepladder.errors import StepladderError

if TYPE_CHECKING:
    from stepladder.labs.lab import Lab

WORDS = ("list", "next", "start", "hint", "predict", "check", "run", "race", "solution")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", nargs="?", choices=WORDS, default="list")
    parser.add_argument("name", nargs="?", metavar="NAME", help="a lab, as the list names it")
    parser.add_argument(
        "file", nargs="?", type=Path, metavar="FILE", help="your file; predict: your number"
    )
    parser.add_argument("--force", action="store_true", help="start: overwrite your file")
    parser.add_argument(
        "--adapter", action="store_true", help="start: a file that names each part's function"
    )
    parser.add_argument("--part", type=int, metavar="N", help="hint: of which part")
    parser.add_argument(
        "--limit", type=float, metavar="SECONDS", help="check: processor time of your code"
    )
    parser.add_argument(
        "--predict", metavar="NUMBER", help="check, run: what you expect, before it is measured"
    )
    parser.add_argument(
        "--plot", type=Path, metavar="PNG", help="run: where the picture goes; check: of your run"
    )
    parser.add_argument(
        "--by", choices=("time", "bytes", "error"), default="time", help="race: who wins"
    )
    parser.add_argument("--name", dest="who", metavar="WHO", help="race: whose solution it is")
    parser.add_argument("--json", action="store_true")


def run(options: argparse.Namespace) -> int:
    from stepladder.cli.learning.list_labs import list_labs, next_lab
    from stepladder.labs.catalogue.courses import find_lab

    if options.what in ("list", "next"):
        return (list_labs if options.what == "list" else next_lab)(options)
    if options.name is None:
        raise StepladderError(
            "lab", f"'{options.what}' needs the name of a lab", "'stepladder lab' lists them."
        )
    return act(options, find_lab(options.name))


def act(options: argparse.Namespace, lab: Lab) -> int:
    """Do the word with the lab."""
    from stepladder.cli.learning import check_lab, list_labs, predict, run_lab, start_lab

    actions = {
        "start": start_lab.start,
        "hint": start_lab.hint,
        "predict": predict.predict,
        "check": check_lab.check,
        "run": run_lab.make_numbers,
        "race": run_lab.race_solutions,
        "solution": list_labs.show_solution,
    }
    return actions[options.what](lab, options)
