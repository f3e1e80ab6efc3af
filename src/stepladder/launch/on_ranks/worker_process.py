"""A worker process as its parent sees it: started, sent calls, asked for its stack, killed."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any

import cloudpickle

from stepladder.errors import WorldError

from .worker import ANSWER, LEFT, READY, make_forked_call

WORKER = Path(__file__).with_name("worker.py")
LAST_LINES = 12  # of a rank's output, repeated when it fails
EXIT_SECONDS = 3.0  # for a process to end after it closed its connection
STACK_SECONDS = 20  # for a hung rank to write its stacks


Call = tuple[Callable[..., Any], tuple[Any, ...]]  # a function and its arguments


class Spawned(subprocess.Popen[bytes]):
    """A new interpreter in a session of its own, so that an interrupt does not reach it."""

    def kill(self) -> None:
        """End it and whatever it started."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)


class Forked:
    """A copy of this process, in the same session."""

    stdout: IO[bytes] | None = None
    stderr: IO[bytes] | None = None

    def __init__(self, *args: Any) -> None:
        self.process = get_context("fork").Process(target=make_forked_call, args=args)
        self.process.start()
        self.pid = self.process.pid or 0

    def poll(self) -> int | None:
        return self.process.exitcode

    def kill(self) -> None:
        self.process.kill()

    def wait(self) -> int | None:
        self.process.join()
        return self.process.exitcode


class Worker:
    """One worker process, and what it has sent during the present call."""

    def __init__(
        self, process: Spawned | Forked, connection: Connection, stacks: IO[bytes]
    ) -> None:
        self.process, self.connection, self.stacks = process, connection, stacks
        self.received: dict[str, Any] = {}
        self.answered_at = 0.0
        self.lost = False  # it ended by itself
        self.last_lines: deque[str] = deque(maxlen=LAST_LINES)
        self.begun_lines: dict[IO[bytes], bytes] = {}  # of an output stream: not ended yet

    @property
    def ready(self) -> bool:
        return READY in self.received

    @property
    def answer(self) -> dict[str, Any] | None:
        return self.received.get(ANSWER)

    @property
    def silent(self) -> bool:
        return self.answer is None and not self.lost

    @property
    def failed(self) -> bool:
        return self.lost or (self.answer is not None and "value" not in self.answer)

    @property
    def left(self) -> bool:
        """Whether the call is behind it, process group and all."""
        return self.lost or LEFT in self.received

    def forget(self) -> None:
        """Be ready for another call."""
        self.received = {READY: None}
        self.last_lines.clear()

    def send(self, message: bytes) -> None:
        with suppress(OSError):  # it is dead, which is found out while waiting for its answer
            self.connection.send_bytes(message)

    def receive(self) -> bool:
        """Take one message; False if no other will come."""
        try:
            kind, content = pickle.loads(self.connection.recv_bytes())
        except (EOFError, OSError):
            self.lost, self.answered_at = True, time.monotonic()
            return False
        self.received[kind] = content
        if kind == ANSWER:
            self.answered_at = time.monotonic()
        return True

    def load(self, part: str) -> Any:
        """A pickled part of its answer."""
        return pickle.loads((self.answer or {})[part])

    def check_alive(self) -> None:
        """Notice its end even where a process that it left behind keeps the connection open."""
        if self.process.poll() is not None and not self.connection.poll():
            self.lost, self.answered_at = True, time.monotonic()

    def exit_code(self) -> int | None:
        """Of a process that ended by itself, which takes a moment after its last message."""
        deadline = time.monotonic() + EXIT_SECONDS
        while (code := self.process.poll()) is None and time.monotonic() < deadline:
            time.sleep(0.01)
        return code

    def stack(self) -> str:
        """Where each of its threads stands now, the main thread last."""
        if self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGUSR2)
        deadline = time.monotonic() + STACK_SECONDS
        while "in <module>" not in (text := self.stacks_text()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return text

    def stacks_text(self) -> str:
        size = os.fstat(self.stacks.fileno()).st_size
        return os.pread(self.stacks.fileno(), size, 0).decode(errors="replace")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.connection.close()
        for file in (self.stacks, self.process.stdout, self.process.stderr):
            if file is not None:
                file.close()


def spawn(between_calls: Callable[[], None] | None, *, pipe_output: bool) -> Worker:
    """A worker in a new interpreter, which takes call after call."""
    ours, theirs = Pipe()
    stacks = tempfile.TemporaryFile()  # noqa: SIM115  closed with the worker
    output = subprocess.PIPE if pipe_output else None
    process = Spawned(
        [sys.executable, "-P", str(WORKER), str(theirs.fileno()), str(stacks.fileno())],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        pass_fds=[theirs.fileno(), stacks.fileno()],
        start_new_session=True,
    )
    theirs.close()
    worker = Worker(process, ours, stacks)
    reset = pickle.dumps(between_calls) if between_calls else b""
    worker.send(pickle.dumps((sys.path, reset)))
    return worker


def fork(call: Call, environment: dict[str, str]) -> Worker:
    """A worker that is a copy of this process and makes this one call."""
    ours, theirs = Pipe()
    stacks = tempfile.TemporaryFile()  # noqa: SIM115  closed with the worker
    process = Forked(ours, theirs, stacks.fileno(), call, environment)
    theirs.close()
    return Worker(process, ours, stacks)


def message(call: bytes, environment: dict[str, str]) -> bytes:
    """What a spawned worker is sent to make a call."""
    return pickle.dumps({"call": call, "environment": environment, "path": list(sys.path)})


def packed(call: Call) -> bytes:
    try:
        return cloudpickle.dumps(call)
    except Exception as refused:
        raise WorldError(
            "ranks",
            f"the function or what it refers to cannot be sent to another process ({refused})",
            "Open files, locks and runs stay where they are: make them inside the function.",
        ) from refused
