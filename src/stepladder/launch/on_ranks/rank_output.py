"""A rank that was started from a cell: its process, what it writes, and what it answers.

Everything is read by the one thread that waits for the ranks, so that what they write appears in
the cell that called them, in the order in which it came, and an interrupt ends the waiting.
"""

from __future__ import annotations

import os
import pickle
import re
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from typing import IO, Any

from stepladder.launch.local.rank_logs import Screen

CALLED = Path(__file__).with_name("call.py")
LAST_LINES = 12  # of a failed rank, kept to be shown again
LINE = re.compile(rb"[^\r\n]*(?:\r\n|[\r\n])")  # a progress bar ends its line by going back


def start(index: int, environ: Mapping[str, str]) -> Rank:
    ours, theirs = Pipe()
    process = subprocess.Popen(
        [sys.executable, "-P", str(CALLED), str(theirs.fileno())],
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=[theirs.fileno()],
        start_new_session=True,  # a cell's interrupt is for us, and what a rank starts ends with it
    )
    theirs.close()
    return Rank(index, process, ours)


@dataclass
class Lines:
    """One stream of a rank, shown line by line."""

    pipe: IO[bytes]
    screen: Screen
    label: str
    last: deque[str]
    rest: bytes = b""  # of a line that has not ended

    def read(self) -> bool:
        """Show what has come; False at its end."""
        chunk = os.read(self.pipe.fileno(), 2**16)
        text = self.rest + (chunk or b"\n" * bool(self.rest))
        lines = LINE.findall(text)
        self.rest = text[sum(map(len, lines)) :]
        for line in lines:
            words = line.decode(errors="replace")
            self.screen.write(f"{self.label}{words}")
            self.last.append(words.rstrip())
        return bool(chunk)


@dataclass
class Rank:
    """A started process, and what was heard of it."""

    index: int
    process: subprocess.Popen[bytes]
    connection: Connection
    answer: Mapping[str, Any] | None = None
    lost: bool = False  # it ended by itself, without an answer
    killed: bool = False  # by us
    last: deque[str] = field(default_factory=lambda: deque(maxlen=LAST_LINES))

    @property
    def silent(self) -> bool:
        return self.answer is None and not self.lost

    @property
    def failed(self) -> bool:
        return self.lost or (self.answer is not None and "value" not in self.answer)

    def hear(self) -> bool:
        """Take its answer; False, since no other will come."""
        try:
            self.answer = pickle.loads(self.connection.recv_bytes())
        except (EOFError, OSError):
            self.lost = not self.killed
        return False

    def look(self) -> None:
        """See whether it has ended where a process that it left behind keeps its end open."""
        if self.silent and self.process.poll() is not None and not self.connection.poll():
            self.lost = True

    def release(self) -> None:
        """Let it leave in its own time: what it saves in the background is then whole."""
        with suppress(OSError):
            self.connection.send_bytes(b"leave")

    def kill(self) -> None:
        """End it now, with whatever it started."""
        self.killed = True
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def close(self) -> None:
        self.kill()
        self.connection.close()
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()


def follow(team: list[Rank], streams: DefaultSelector) -> None:
    """Name what is to be called when a rank is heard."""
    out = Screen(sys.stdout, complaints=False)
    complaints = Screen(sys.stderr, complaints=True)
    for rank in team:
        label = f"[rank {rank.index}] " if rank.index else ""
        streams.register(rank.connection, EVENT_READ, rank.hear)
        for pipe, screen in ((rank.process.stdout, out), (rank.process.stderr, complaints)):
            assert pipe is not None
            streams.register(pipe, EVENT_READ, Lines(pipe, screen, label, rank.last).read)


def listen(streams: DefaultSelector, seconds: float | None) -> bool:
    """Wait so long for a rank to be heard; whether one was."""
    heard = streams.select(seconds)
    for key, _ in heard:
        if not key.data():
            streams.unregister(key.fileobj)
    return bool(heard)
