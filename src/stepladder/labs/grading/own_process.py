"""One answer about a learner's file from a process of its own, under a limit."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any

from stepladder.labs.lab import Lab

from .compose_lesson import compose_lesson
from .grade import explain, load
from .own_session import own_session
from .processor_time import Budget

LATE = {"over": "it took over {:g} s", "idle": "it waits for ever"}


@dataclass(frozen=True, slots=True)
class Problem:
    """Why there is no answer: the end of a sentence."""

    text: str


def ask(function: Callable[[ModuleType], Any], lab: Lab, path: Path, limit_seconds: float) -> Any:
    """What the function gives for the lesson in the file, or a Problem.

    Args:
        limit_seconds: processor time of the file and of all processes that it starts.
    """
    with own_session(answer, function, lab, path.resolve()) as (pid, connection):
        reason = Budget(pid, limit_seconds).wait(connection.poll)
        if reason:
            return Problem(LATE[reason].format(limit_seconds))
        try:
            return connection.recv()
        except EOFError:
            return Problem("the process ended without an answer")


def answer(
    connection: Connection, function: Callable[[ModuleType], Any], lab: Lab, path: Path
) -> None:
    """Run in the other process."""
    os.dup2(2, 1)
    try:
        connection.send(function(compose_lesson(lab, load(path))))
    except (Exception, SystemExit) as raised:
        connection.send(Problem(explain(raised, path).splitlines()[-1]))
