"""The worker process of one rank: receives calls, makes them, and sends back the results.

A worker is started by running this file, which imports no torch: a function that needs none starts
at once. It stays in its process group after a call until every rank is done, because others may
still communicate with it. It exits when the process that started it is gone.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any

import cloudpickle

READY, ANSWER, LEFT = "ready", "answer", "left"  # what a worker sends
LEAVE, EXIT = b"leave", b"exit"  # what it is sent, besides calls
HERE = __file__


def main() -> None:
    connection, stacks = Connection(int(sys.argv[1])), int(sys.argv[2])
    path, reset = pickle.loads(connection.recv_bytes())
    sys.path[:] = path  # before anything else is unpickled: modules are found as in the parent
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    inbox = start(connection, stacks)
    gc.disable()  # it would walk all of torch several times while that is imported
    between_calls = pickle.loads(reset) if reset else lambda: None
    between_calls()
    gc.freeze()
    gc.enable()
    send(connection, READY)
    while (message := inbox.get()) != EXIT:
        call = pickle.loads(message)
        environment, folder = dict(os.environ), os.getcwd()
        load = partial(pickle.loads, call["call"])
        answer = make_call(load, call["environment"], call["path"])
        send(connection, ANSWER, answer)
        if "value" in answer:  # a rank that failed leaves at once: the others then fail too
            inbox.get()
        leave_group()
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(folder)
        between_calls()
        send(connection, LEFT)


def make_forked_call(
    parents_end: Connection,
    connection: Connection,
    stacks: int,
    call: tuple[Callable[..., Any], tuple[Any, ...]],
    environment: dict[str, str],
) -> None:
    """A forked worker's one call, which was never pickled; it then waits to be killed."""
    parents_end.close()  # an inherited copy, which would hide that the parent is gone
    inbox = start(connection, stacks)
    send(connection, READY)
    send(connection, ANSWER, make_call(lambda: call, environment, sys.path))
    inbox.get()


def start(connection: Connection, stacks: int) -> SimpleQueue[bytes]:
    """Be ready to write all stacks on SIGUSR2, and receive messages in the background."""
    faulthandler.register(signal.SIGUSR2, file=stacks, all_threads=True)
    inbox: SimpleQueue[bytes] = SimpleQueue()

    def receive() -> None:
        try:
            while True:
                inbox.put(connection.recv_bytes())
        except (EOFError, OSError):
            os._exit(1)  # the parent is gone, whatever the main thread is doing

    threading.Thread(target=receive, daemon=True).start()
    return inbox


def send(connection: Connection, kind: str, content: Any = None) -> None:
    connection.send_bytes(pickle.dumps((kind, content)))


def make_call(
    load: Callable[[], tuple[Callable[..., Any], tuple[Any, ...]]],
    environment: dict[str, str],
    path: list[str],
) -> dict[str, Any]:
    """The pickled result, or the error as plain values."""
    os.environ.update(environment)
    sys.path[:] = path
    try:
        function, args = load()
        answer: dict[str, Any] = {"value": pickled(function(*args))}
    except BaseException as error:
        frames = traceback.extract_tb(error.__traceback__)
        answer = {
            "moment": time.monotonic(),  # comparable between processes of one machine
            "kind": type(error).__name__,
            "message": str(error),
            "frames": [(f.filename, f.lineno, f.name) for f in frames if f.filename != HERE],
            "traceback": traceback.format_exc(),
            "error": portable(error),
        }
    sys.stdout.flush()
    sys.stderr.flush()
    return answer


def pickled(value: Any) -> bytes:
    try:
        return cloudpickle.dumps(value)
    except Exception as refused:
        raise TypeError(f"what it returned cannot be sent back: {refused}") from None


def portable(error: BaseException) -> bytes:
    """The pickled error if unpickling it gives the same error, else nothing."""
    try:
        sent = cloudpickle.dumps(error)
        return sent if str(pickle.loads(sent)) == str(error) else b""
    except Exception:
        return b""


def leave_group() -> None:
    """Destroy the process group that the function left open, if it ever used one."""
    group = sys.modules.get("torch.distributed")
    if group is not None and group.is_available() and group.is_initialized():
        group.destroy_process_group()
        # A failed call's frames refer to each other and to the group: until they are collected its
        # connections stay open, and ranks that wait for this one do not notice that it has left.
        gc.collect()


if __name__ == "__main__":
    main()
