"""One rank of `on_ranks`: a process that is sent a function, calls it, and sends back what came.

It is run as a file and imports no torch: a function that needs none starts in a blink, and one that
does pays for it once. What it writes goes where its starter reads. It ends when that one ends.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
import time
import traceback
from multiprocessing.connection import Connection
from typing import Any, TextIO

import cloudpickle

HERE = __file__


def main() -> None:
    connection = Connection(int(sys.argv[1]))
    path, call = pickle.loads(connection.recv_bytes())
    sys.path[:] = path  # before the call is read: its modules are found as they are over there
    starter = threading.Thread(target=wait_for_starter, args=(connection,), daemon=True)
    starter.start()
    streams: list[Any] = [sys.stdout, sys.stderr]
    for stream in streams:
        stream.reconfigure(line_buffering=True)
    answer = work(call)
    flush(*streams)
    connection.send_bytes(pickle.dumps(answer))
    starter.join()  # others may still talk to this rank: all leave together
    leave_group()


def work(call: bytes) -> dict[str, Any]:
    """What came of the call, as plain values: its result's bytes, or its error."""
    try:
        function, args = pickle.loads(call)
        return {"value": packed(function(*args))}
    except BaseException as error:
        frames = traceback.extract_tb(error.__traceback__)
        return {
            "moment": time.time(),
            "kind": type(error).__name__,
            "said": str(error),
            "frames": [(f.filename, f.lineno, f.name) for f in frames if f.filename != HERE],
            "error": portable(error),
        }


def packed(value: Any) -> bytes:
    try:
        return cloudpickle.dumps(value)
    except Exception as refused:
        raise TypeError(f"what it returned cannot be sent back: {refused}") from None


def portable(error: BaseException) -> bytes:
    """The error itself where it can be read again on the other side, else nothing."""
    try:
        sent = cloudpickle.dumps(error)
        pickle.loads(sent)
        return sent
    except Exception:
        return b""


def flush(*streams: TextIO) -> None:
    for stream in streams:
        stream.flush()


def wait_for_starter(connection: Connection) -> None:
    """Return when all ranks may leave; end this process where its starter is gone."""
    try:
        connection.poll(None)
        connection.recv_bytes()
    except (EOFError, OSError):
        os._exit(1)


def leave_group() -> None:
    """Close the group that the function left open, if it ever used one."""
    group = sys.modules.get("torch.distributed")
    if group is not None and group.is_available() and group.is_initialized():
        group.destroy_process_group()


if __name__ == "__main__":
    main()
