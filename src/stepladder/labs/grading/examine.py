"""A learner's file, examined in another process that may use so much processor time.

Another process, because the file may loop for ever, end the process or break torch's settings; its
own session, so that ranks it started end with it. Tests use a fork server that has imported torch
already, which costs a check a tenth of a second instead of three.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from stepladder.labs.lab import Lab

from .finding import Finding
from .grade import IDLE, OVER, checks_of, grade
from .own_session import own_session
from .processor_time import Budget

GRACE_SECONDS = 5.0  # of the processor, for the examiner to name the line before it is killed
GRACE_IDLE_SECONDS = 15.0  # for the same, where it does nothing
IMPORT_SECONDS = 120.0  # of the processor, for torch to be imported
KILLED = "It did not end in time and had to be killed."
ENDED = "The process ended without an answer: exit() or a crash."


def judge(lab: Lab, path: Path, *, limit_seconds: float, quiet: bool = False) -> Iterator[Finding]:
    """Yield each check's finding as it comes; where the process ended early, the last says so.

    What the learner's file prints is shown, or on the error stream where `quiet`.

    Args:
        limit_seconds: processor time of the file and of all processes that it starts.
    """
    with own_session(examine, lab, path.resolve(), limit_seconds, quiet) as (pid, connection):
        yield from findings(connection, Budget(pid, IMPORT_SECONDS))


def findings(connection: Connection, budget: Budget) -> Iterator[Finding]:
    claim = "Your file can be run."
    while True:
        reason = budget.wait(connection.poll)
        if reason and not interrupt(budget, reason, connection):
            yield Finding(claim, False, KILLED)
            return
        try:
            kind, value = connection.recv()
        except EOFError:
            yield Finding(claim, False, ENDED)
            return
        if kind == "done":
            return
        if kind == "begun":
            budget.begin(value)
            continue
        yield value
        claim = "The checks after this one."


def interrupt(budget: Budget, reason: str, connection: Connection) -> bool:
    """Have the busiest process stop and say where it was, else the examiner; whether one did."""
    number = {"over": OVER, "idle": IDLE}[reason]
    for pid in dict.fromkeys((budget.busiest, budget.pid)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        budget.begin(GRACE_SECONDS, GRACE_IDLE_SECONDS)
        if not budget.wait(connection.poll):
            budget.begin(GRACE_SECONDS)  # for the checks after this one
            return True
    return False


def examine(
    connection: Connection, lab: Lab, path: Path, limit_seconds: float, quiet: bool
) -> None:
    """Run in the other process: grade the file and send back each finding."""
    if quiet:
        os.dup2(2, 1)
    checks = checks_of(lab)  # they import torch, which is none of the file's time
    connection.send(("begun", limit_seconds))
    for finding in grade(lab, path, checks):
        sys.stdout.flush()  # what the file printed: this process is ended, not left to end
        connection.send(("finding", finding))
    sys.stdout.flush()
    connection.send(("done", None))


def numbers(lab: Lab) -> list[dict[str, Any]]:
    """The rows of numbers that our solution measures on this machine."""
    return importlib.import_module(
        f"stepladder.labs.lessons.{lab.course_folder}.{lab.stem}"
    ).measure()
