"""What ranks write, shown line by line as it comes.

Everything is read by the one thread that waits for the ranks, so that their output appears in the
notebook cell that called them, in the order in which it came, and an interrupt ends the waiting.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from selectors import EVENT_READ, DefaultSelector
from typing import IO

from stepladder.launch.local.rank_logs import Screen

from .worker_process import Worker

LINE = re.compile(rb"[^\r\n]*(?:\r\n|[\r\n])")  # a progress bar ends its line by going back


@dataclass
class Lines:
    """One output stream of a rank."""

    pipe: IO[bytes]
    screen: Screen
    label: str
    worker: Worker

    def read(self) -> bool:
        """Show what has come; False at its end."""
        chunk = os.read(self.pipe.fileno(), 2**16)
        begun = self.worker.begun_lines.pop(self.pipe, b"")
        text = begun + (chunk or b"\n" * bool(begun))
        lines = LINE.findall(text)
        self.worker.begun_lines[self.pipe] = text[sum(map(len, lines)) :]
        for line in lines:
            words = line.decode(errors="replace")
            self.screen.write(f"{self.label}{words}")
            self.worker.last_lines.append(words.rstrip())
        return bool(chunk)


class Listener:
    """Waits for messages and output of several workers at once."""

    def __init__(self, workers: Sequence[Worker]) -> None:
        self.streams = DefaultSelector()
        out = Screen(sys.stdout, stderr=False)
        errors = Screen(sys.stderr, stderr=True)
        for rank, worker in enumerate(workers):
            label = f"[rank {rank}] " if rank else ""
            self.streams.register(worker.connection, EVENT_READ, worker.receive)
            for pipe, screen in ((worker.process.stdout, out), (worker.process.stderr, errors)):
                if pipe is not None:
                    lines = Lines(pipe, screen, label, worker)
                    self.streams.register(pipe, EVENT_READ, lines.read)

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *exit: object) -> None:
        self.streams.close()

    def listen(self, seconds: float) -> bool:
        """Wait so long for something to come and take it; whether something came."""
        ready = self.streams.select(seconds)
        for key, _ in ready:
            if not key.data():
                self.streams.unregister(key.fileobj)
        return bool(ready)

    def drain(self) -> None:
        """Show all that was written so far."""
        while self.listen(0):
            pass
