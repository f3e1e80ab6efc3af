"""Reading a command's words: argparse, whose errors are printed in one line with the remedy.

Files that a command is to write are looked at here too, before it measures for minutes.
"""

from __future__ import annotations

import argparse
import os
import re
from pathlib import Path
from typing import Any, NoReturn

from stepladder.errors import RecordError, StepladderError, nearest

KINDS = {"int": "a whole number", "float": "a number", "positive": "a whole number of 1 or more"}

WRITTEN = ("plot", "out", "output", "save", "certificate")  # options that name a file to write
EXAMPLES = {"plot": "loss.png", "output": "report.html", "save": "plan.toml"}
PICTURES = (
    "eps", "jpeg", "jpg", "pdf", "pgf", "png", "ps", "raw", "rgba", "svg", "svgz", "tif", "tiff",
    "webp",
)  # fmt: skip


class CommandParser(argparse.ArgumentParser):
    """A parser whose errors are ours: the field, what is so, the way out."""

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Read the words in any order: a MODEL that is optional may stand behind options, too."""
        return self.parse_intermixed_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        raise self.mistake(message)

    def mistake(self, message: str) -> StepladderError:
        help = f"'{self.prog} --help' lists what it takes."
        if found := re.match(
            r"argument (\S+): invalid choice: '(.*?)' \(choose from (.*)\)", message
        ):
            field, given, choices = found.groups()
            known = [choice.strip("' ") for choice in choices.split(",")]
            return StepladderError(bare(field), f"'{given}' is not one", nearest(given, known))
        if found := re.match(r"argument (\S+): invalid (\w+) value: (.*)", message):
            field, kind, given = found.groups()
            problem = f"{given} is not {KINDS.get(kind, kind)}"
            return StepladderError(bare(field), problem, f"Write one. {help}")
        if found := re.match(r"unrecognized arguments: (\S+)", message):
            options = [option for option in self._option_string_actions if option[:2] == "--"]
            remedy = nearest(found[1].partition("=")[0], options)
            return StepladderError("option", f"'{found[1]}' is not one of {self.prog}", remedy)
        if found := re.match(r"the following arguments are required: ([^,]+)", message):
            usage = " ".join(self.format_usage().split()).removeprefix("usage: ")
            return StepladderError(found[1], "is not given", f"Write {usage}")
        if found := re.match(r"argument (\S+): ignored explicit argument (.*)", message):
            problem = f"takes no value, and {found[2]} was given"
            return StepladderError(bare(found[1]), problem, f"Write --{bare(found[1])} alone.")
        if found := re.match(r"argument (\S+): (.*)", message):
            return StepladderError(bare(found[1]), found[2], help)
        return StepladderError(self.prog, message, help)


def bare(option: str) -> str:
    """An option's name as a field: of '-o/--output' the long one."""
    return option.rpartition("/")[2].lstrip("-")


def check_outputs(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Refuse now what could not be written later."""
    for action in parser._actions:
        given = getattr(options, action.dest, None)
        if action.option_strings and action.dest in WRITTEN and isinstance(given, (str, Path)):
            check_output(action.dest, Path(given))


def check_output(option: str, path: Path) -> None:
    """Refuse a file that cannot be written, and a picture of no known kind."""
    why = why_not(path)
    kind = path.suffix[1:].lower()
    if not why and option == "plot" and kind and kind not in PICTURES:
        why = f"'.{kind}' is no kind of picture"
    if why:
        example = EXAMPLES.get(option, f"{option}.json")
        remedy = f"Name another file, such as {example}."
        raise RecordError(option, f"{path} cannot be written ({why})", remedy)


def why_not(path: Path) -> str:
    """Why a file cannot be written there; empty where it can. Nothing is left behind."""
    if not path.name:
        return "it names no file"
    if path.is_dir():
        return "Is a directory"
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if not folder.is_dir():
        return f"{folder} is no folder"
    if not os.access(path if path.exists() else folder, os.W_OK):
        return "Permission denied"
    return ""
