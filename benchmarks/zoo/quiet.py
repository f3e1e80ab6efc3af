"""Timing with the machine to oneself while other processes of the same benchmark compile.

Compiling a module takes a processor a minute, timing it takes the GPU seconds. Processes therefore
work beside each other, and who times something stops all the others for that long, with what their
compilers have started: nothing else then uses the processors or the GPU.
"""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

LONGEST = 120.0  # seconds that anybody may have the machine alone
IDLE = 1.25  # times the quickest probe that a GPU may take
PATIENCE = 0.15  # seconds that it may take to come to that


class Quiet:
    """The processes of one benchmark, which stop each other in turn.

    Args:
        folder: of the benchmark: a lock, and a file for each process, named by its group.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lock = folder / "lock"
        self.holder = folder / "holder"
        self.depth = 0
        self.quickest = float("inf")
        self.waited = 0.0  # seconds, until the others had ended what they timed
        self.held = 0.0  # seconds that the others were stopped for this one

    def __str__(self) -> str:
        return f"waited {self.waited:.0f} s for others' timings, stopped them for {self.held:.0f}"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """While nobody has the machine alone, so that processes may be started."""
        began = time.monotonic()
        with self.lock.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            self.waited += time.monotonic() - began
            yield

    def enter(self, group: int) -> None:
        """A process that leads its group takes part from now on."""
        (self.folder / f"{group}.group").touch()

    def leave(self, group: int) -> None:
        (self.folder / f"{group}.group").unlink(missing_ok=True)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """With all other processes stopped."""
        if self.depth:
            yield
            return
        with self.locked():
            began = time.time()
            self.holder.write_text(str(began))
            self.depth += 1
            try:
                self.signal_others(signal.SIGSTOP)
                self.wait_for_idle_gpu()
                yield
            finally:
                self.depth -= 1
                self.held += time.time() - began
                self.signal_others(signal.SIGCONT)
                self.holder.unlink(missing_ok=True)

    def signal_others(self, number: signal.Signals) -> None:
        for file in self.folder.glob("*.group"):
            if (group := int(file.stem)) != os.getpgrp():
                with suppress(ProcessLookupError):
                    os.killpg(group, number)

    def release_after(self, seconds: float = LONGEST) -> None:
        """Have everybody go on where one process kept the machine too long, or died with it."""
        with suppress(OSError, ValueError):
            if time.time() - float(self.holder.read_text()) > seconds:
                self.signal_others(signal.SIGCONT)

    def wait_for_idle_gpu(self) -> None:
        """Until kernels that stopped processes had queued are over: a probe is as quick as ever."""
        if not torch.cuda.is_available():
            return
        torch.cuda.synchronize()
        ones = torch.ones(2048, 2048, device="cuda", dtype=torch.bfloat16)
        until, calm = time.perf_counter() + PATIENCE, 0
        while calm < 3 and time.perf_counter() < until:
            began = time.perf_counter()
            for _ in range(20):
                ones @ ones
            torch.cuda.synchronize()
            spent = time.perf_counter() - began
            self.quickest = min(self.quickest, spent)
            calm = calm + 1 if spent < IDLE * self.quickest else 0

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, always called with the machine to itself."""

        def alone(*given: Any, **named: Any) -> Any:
            with self.alone():
                return function(*given, **named)

        return alone
