"""A learner's file, examined in another process under a time limit.

Another process, because the file may loop for ever, end the process or break torch's settings; its
own session, so that ranks it started end with it. Tests use a fork server that has imported torch
already, which costs a check a tenth of a second instead of three.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from stepladder.labs.lab import Lab

from .finding import Finding
from .grade import grade

GRACE_SECONDS = 5.0  # for the examiner to name the line by itself before it is killed
IMPORT_SECONDS = 60.0  # for torch to be imported on a slow disk


def judge(
    lab: Lab, path: Path, *, limit_seconds: float, quiet: bool = False, method: str = "spawn"
) -> Iterator[Finding]:
    """Yield each check's finding as it comes; where the process ended early, the last says so.

    What the learner's file prints is shown, or on the error stream where `quiet`.
    """
    context = get_context(method)
    ours, theirs = context.Pipe(duplex=False)
    given = (theirs, lab, path.resolve(), limit_seconds, quiet)
    examiner = context.Process(target=examine, args=given)  # type: ignore[attr-defined]
    examiner.start()
    theirs.close()
    try:
        yield from findings(ours, time.monotonic() + limit_seconds + IMPORT_SECONDS)
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(examiner.pid, signal.SIGKILL)
        examiner.join()


def findings(connection: Connection, deadline: float) -> Iterator[Finding]:
    claim = "Your file can be run."
    while True:
        if not connection.poll(max(0.0, deadline - time.monotonic())):
            yield Finding(claim, False, "It did not end in time and had to be killed.")
            return
        try:
            kind, value = connection.recv()
        except EOFError:
            yield Finding(claim, False, "The process ended without an answer: exit() or a crash.")
            return
        if kind == "done":
            return
        if kind == "begun":
            deadline = time.monotonic() + value + GRACE_SECONDS
            continue
        yield value
        claim = "The checks after this one."


def examine(
    connection: Connection, lab: Lab, path: Path, limit_seconds: float, quiet: bool
) -> None:
    """Run in the other process: grade the file and send back each finding."""
    os.setsid()
    if quiet:
        os.dup2(2, 1)
    connection.send(("begun", limit_seconds))
    for finding in grade(lab, path, limit_seconds):
        sys.stdout.flush()  # what the file printed: this process is ended, not left to end
        connection.send(("finding", finding))
    sys.stdout.flush()
    connection.send(("done", None))


def numbers(lab: Lab) -> list[dict[str, Any]]:
    """The rows of numbers that our solution measures on this machine."""
    return importlib.import_module(
        f"stepladder.labs.lessons.{lab.course_folder}.{lab.stem}"
    ).measure()
