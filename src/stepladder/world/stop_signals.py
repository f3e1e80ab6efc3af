"""Being asked to stop: Ctrl-C and a scheduler's signals become a flag the loop reads between steps.

An interrupt in the middle of an optimizer step would leave half-updated parameters; a flag lets
the step finish and the checkpoint be whole. A second Ctrl-C interrupts at once, unless it follows
so fast that it is the first again: a terminal sends it to every process, and a launcher repeats it.

A scheduler that takes a machine back gives notice by SIGTERM, or by SIGUSR1 some time before, and
kills what is still there when its patience ends. So from its first signal on a clock runs: a
process that has not left when the time is over leaves, with the code that says why.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from types import FrameType, TracebackType

ECHO_SECONDS = 0.5
NOTICES = (signal.SIGTERM, signal.SIGUSR1)  # a scheduler's
CAUGHT = (signal.SIGINT, *NOTICES)


def stop_code(name: str) -> int:
    """The exit code of a run that a signal stopped.

    130 after Ctrl-C, as shells count. After a scheduler's notice always 143, the code of a process
    that SIGTERM ended: by it schedulers and scripts know a run that was taken off, and is to be
    started again, from one that failed.
    """
    number = signal.Signals[name]
    return 128 + (signal.SIGTERM if number in NOTICES else number)


class Stop:
    """Context in which signals set `asked` to the signal's name instead of ending the process.

    Args:
        grace_seconds: how long after a scheduler's notice the process may stay; None: any time.
    """

    def __init__(self, grace_seconds: float | None = None) -> None:
        self.asked: str | None = None
        self.grace_seconds = grace_seconds
        self._moment = self._began = 0.0
        self._clock: threading.Timer | None = None
        self._before: dict[int, object] = {}

    def __enter__(self) -> Stop:
        if threading.current_thread() is threading.main_thread():  # only it may set handlers
            for number in CAUGHT:
                self._before[number] = signal.signal(number, self._note)
        return self

    @property
    def seconds(self) -> float:
        """Time since the first signal."""
        return time.monotonic() - self._began

    def _note(self, number: int, frame: FrameType | None) -> None:
        echo = time.monotonic() - self._moment < ECHO_SECONDS
        if self.asked and number == signal.SIGINT and not echo:
            raise KeyboardInterrupt
        self._moment = time.monotonic()
        if self.asked is None:
            self.asked, self._began = signal.Signals(number).name, self._moment
        if number in NOTICES and self._clock is None and self.grace_seconds is not None:
            self._clock = threading.Timer(self.grace_seconds, self._leave)
            self._clock.daemon = True
            self._clock.start()

    def _leave(self) -> None:
        assert self.asked is not None
        line = (
            f"{self.asked}: not done within {self.grace_seconds:g} s (run.grace_seconds); leaving"
        )
        os.write(2, f"{line} with the last checkpoint that was whole.\n".encode())
        os._exit(stop_code("SIGTERM"))  # the main thread may be in a call that does not end

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._clock is not None:
            self._clock.cancel()
        for number, handler in self._before.items():
            # None: whoever set it was not Python, and cannot be put back from here
            signal.signal(number, signal.SIG_DFL if handler is None else handler)  # type: ignore[arg-type]
        self._before.clear()
