"""`--sample`, `--data` and `--loss`: the user's own code beside their model, for every command.

They are short for keys of the recipe, so what starts a command again on several ranks, or writes
it into a script, hands them over as it does every key.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from stepladder.errors import PlanError
from stepladder.plan.reference import Reference

if TYPE_CHECKING:
    from stepladder.train.user_code.user_code import UserCode

KEYS = {"sample": "data.sample", "data": "data.source", "loss": "train.loss"}
MODEL = "a preset, a shape, a folder, or your own: file.py:make, package.module:make"


def configure_user_code(parser: argparse.ArgumentParser) -> None:
    own = parser.add_argument_group(
        "your own code", "functions called data, batch and loss in the model's file need no option"
    )
    own.add_argument("--data", metavar="FILE.py:NAME", help="the dataset, or a function's")
    own.add_argument("--sample", metavar="FILE.py:NAME", help="one batch, in the place of data")
    own.add_argument(
        "--loss", metavar="FILE.py:NAME", help="or cross_entropy, squared_error, own (the module's)"
    )


def recipe_settings(options: argparse.Namespace) -> list[str]:
    """The settings that were given, those options among them."""
    given = ((key, getattr(options, name)) for name, key in KEYS.items())
    return [*(f"--{key}={value}" for key, value in given if value), *options.settings]


def read_user_code(options: argparse.Namespace, model: str) -> UserCode:
    """The same options for a command that reads no recipe."""
    from stepladder.train.user_code.user_code import UserCode

    if options.data and Reference.parse(options.data) is None:
        problem = f"'{options.data}' does not name data of yours"
        raise PlanError("data", problem, "Write file.py:name or package.module:name.")
    return UserCode(model, options.sample or "", options.data or "", options.loss or "")


def announce(taken: str) -> None:
    """Say what was used without being named."""
    if taken:
        print(taken, file=sys.stderr, flush=True)
