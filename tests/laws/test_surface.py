"""The command line is a promise: an option that goes, comes or changes is seen in a diff.

Write the surface again with `python -m tests.laws.test_surface`, and read what changed.
"""

import argparse
import importlib
from dataclasses import fields
from pathlib import Path

from stepladder.cli.main import COMMANDS
from stepladder.plan.recipe import SECTIONS

KEPT = Path(__file__).with_name("surface.txt")


def surface() -> str:
    """Every command with its options, one a line; sentences may change freely."""
    lines: list[str] = []
    for name in COMMANDS:
        parser = argparse.ArgumentParser(prog=name)
        importlib.import_module(f"stepladder.cli.commands.{name}").configure(parser)
        lines += [f"{name} {line}" for line in options(parser)]
        if parser.get_default("settings"):
            lines.append(f"{name} --SECTION.KEY VALUE")
    for section, choice in SECTIONS.items():
        lines += [f"recipe {section}.{f.name}: {f.type} = {f.default!r}" for f in fields(choice)]
    return "\n".join(lines) + "\n"


def options(parser: argparse.ArgumentParser) -> list[str]:
    found = []
    for action in parser._actions:
        if isinstance(action, argparse._HelpAction):
            continue
        words = [", ".join(action.option_strings) or action.dest]
        if action.choices:
            words.append(f"one of {' '.join(map(str, action.choices))}")
        elif action.nargs != 0:
            words.append(str(action.metavar or action.dest.upper()))
        if action.default not in (None, False):
            words.append(f"default {action.default!r}")
        if action.required:
            words.append("required")
        found.append("  ".join(words))
    return sorted(found)


def test_the_command_line_is_the_one_that_was_promised():
    assert surface() == KEPT.read_text(), (
        "The command line changed. If that was meant, run 'python -m tests.laws.test_surface', "
        "read the diff of tests/laws/surface.txt and commit it."
    )


def test_a_changed_option_would_be_seen():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=5, choices=[1, 5])
    before = options(parser)
    assert before == ["--steps  one of 1 5  default 5"]
    parser.add_argument("model")
    assert options(parser) == [*before, "model  MODEL  required"]


if __name__ == "__main__":
    KEPT.write_text(surface())
