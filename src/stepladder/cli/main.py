"""The `stepladder` command: picks one command and imports only that one.

`--help` must answer in a blink, so this file knows each command's name and sentence and nothing
else of it. It is also the one place where a user's mistake becomes a line on the terminal.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from stepladder.cli.command_parser import CommandParser, check_outputs
from stepladder.errors import LostRank, StepladderError, nearest

COMMANDS = {
    "doctor": "this machine: devices, memory, peaks, what is missing and the fix",
    "plan": "what fits a cluster, how fast, at what price, and why every other plan loses",
    "train": "train a model; with no argument a small GPT on Python's own source",
    "launch": "the same run elsewhere: ssh, Slurm, Kubernetes, Ray; --dry-run shows what is sent",
    "calibrate": "measure this machine, so that forecasts use what it really does",
    "profile": "where a step's time and memory go, what bounds the run, what would help",
    "verify": "prove that precision, resumption or a plan changes nothing that matters",
    "report": "one self-contained page of a run, and its plots",
    "watch": "a page that follows a run: curves, memory, ranks, events, forecast",
    "checkpoint": "verify, inspect or convert what a run saved",
    "course": "the way through the labs, from the first tensor to a cluster, with graded answers",
    "lab": "lessons that run on a laptop and end in a checked number",
    "bench": "the tables people quote, measured here: precision, batch, collectives, ring …",
    "completion": "what a shell needs to complete all of these: bash, zsh or fish",
}

FAILED_CHECK, USER_MISTAKE, INTERRUPTED = 1, 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = answer(words)
        sys.stdout.flush()  # a reader that went away is noticed here, not at the interpreter's end
        return code
    except StepladderError as mistake:
        # At once: print writes the line's end by itself, and another rank's line may come between.
        sys.stderr.write(f"{mistake}\n")
        return FAILED_CHECK if isinstance(mistake, LostRank) else USER_MISTAKE
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output went away: nobody is left to tell
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if not (traceback_text := own_traceback(error)):
            raise
        sys.stderr.write(traceback_text)
        return USER_MISTAKE


def own_traceback(error: Exception) -> str:
    """Where in the user's own code an error was raised; empty where it was in ours."""
    imported = sys.modules.get("stepladder.train.user_code.import_code")
    return imported.own_traceback(error) if imported else ""


@contextmanager
def paths_named() -> Iterator[None]:
    """Say in a line what any look at a user's path may raise: in a rank of several, too."""
    try:
        yield
    except OSError as refused:
        path = str(refused.filename or "")
        if refused.errno == errno.ENAMETOOLONG:
            problem = f"'{path[:40]}…' has {len(path)} letters, and no file can be called that"
            raise StepladderError("path", problem, "Use a shorter one.") from refused
        if not path or refused.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        raise StepladderError(
            "path",
            f"'{path}' is out of this user's reach ({refused.strerror})",
            "Have its owner allow it, or name another.",
        ) from refused
    except RuntimeError as unknown:
        if "home directory" not in str(unknown):  # pathlib's word for a '~' that leads nowhere
            raise
        problem = "one begins with '~', and that user has no home here"
        raise StepladderError("path", problem, "Write it in full.") from unknown


def answer(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help"):
        print(usage())
        return 0
    if words[0] == "--version":
        print(importlib.import_module("stepladder.version").VERSION)
        return 0
    return run_command(words[0], words[1:])


def run_command(name: str, words: list[str]) -> int:
    if name not in COMMANDS:
        raise StepladderError("command", f"'{name}' is not one", nearest(name, COMMANDS))
    command = importlib.import_module(f"stepladder.cli.commands.{name}")
    parser = CommandParser(
        prog=f"stepladder {name}", description=command.__doc__, allow_abbrev=False
    )
    command.configure(parser)
    words, settings = split_settings(words)
    if settings and not parser.get_default("settings"):
        parser.error(f"{settings[0]} is not an option of this command")
    options = parser.parse_args(words)
    refuse_lost_values(parser, options)
    options.settings = settings
    with paths_named():
        check_outputs(parser, options)
        return command.run(options)


def refuse_lost_values(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Refuse `--on=--`, of which argparse (Python 3.11) makes a list of nothing."""
    for action in parser._actions:
        value = getattr(options, action.dest, None)
        if action.nargs is None and isinstance(value, list) and (not value or [] in value):
            parser.error(f"{'/'.join(action.option_strings)} has no value")


def split_settings(words: list[str]) -> tuple[list[str], list[str]]:
    """Tell a command's own words from `--section.key value` pairs, which change its recipe."""
    own: list[str] = []
    settings: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, equals, _ = word.partition("=")
        if not (name.startswith("--") and "." in name):
            own.append(word)
            continue
        settings.append(word)
        if not equals and rest:
            settings.append(rest.pop(0))
    return own, settings


def usage() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {sentence}" for name, sentence in COMMANDS.items()]
    return "\n".join(
        [
            "usage: stepladder COMMAND [options]",
            "",
            "Takes any PyTorch model up the scaling ladder: foresight, sameness, speed.",
            "",
            *lines,
            "",
            "'stepladder COMMAND --help' says more. '--version' prints the version.",
        ]
    )


if __name__ == "__main__":
    raise SystemExit(main())
