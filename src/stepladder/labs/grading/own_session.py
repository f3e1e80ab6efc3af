"""A process of its own for a learner's file: whatever the file starts ends with it."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

METHOD = "spawn"  # tests fork from a server that has imported torch, which is quicker


@contextmanager
def own_session(function: Callable[..., None], *args: Any) -> Iterator[tuple[int, Connection]]:
    """Block with the id of a process that calls `function(connection, *args)`, and our end."""
    context = get_context(METHOD)
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=lead, args=(function, theirs, *args))  # type: ignore[attr-defined]
    process.start()
    theirs.close()
    try:
        yield process.pid, ours
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.join()


def lead(function: Callable[..., None], connection: Connection, *args: Any) -> None:
    """Run in the other process."""
    os.setsid()
    function(connection, *args)
