"""Reading a command's words: argparse, whose complaints are told in one line with the way out."""

from __future__ import annotations

import argparse
import re
from typing import Any, NoReturn

from stepladder.errors import StepladderError, nearest

KINDS = {"int": "a whole number", "float": "a number", "positive": "a whole number of 1 or more"}


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
        if found := re.match(r"argument (\S+): (.*)", message):
            return StepladderError(bare(found[1]), found[2], help)
        return StepladderError(self.prog, message, help)


def bare(option: str) -> str:
    """An option's name as a field: of '-o/--output' the long one."""
    return option.rpartition("/")[2].lstrip("-")
