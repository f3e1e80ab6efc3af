"""Stop signals: Ctrl-C and a scheduler's signals set a flag that the loop reads between steps.

An interrupt in the middle of an optimizer step would leave half-updated parameters; a flag lets the
step finish and the checkpoint be complete. A second Ctrl-C interrupts at once, unless it follows so
fast that it is a duplicate: a terminal sends it to every process, and a launcher forwards it.

A scheduler that preempts a job sends SIGTERM, or SIGUSR1 some time before, and kills the processes
after a grace period. So the first signal starts a timer: a process still running when it expires
exits, with the code of a preempted run.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from types import FrameType, TracebackType

REPEAT_SECONDS = 0.5
SCHEDULER_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
CAUGHT_SIGNALS = (signal.SIGINT, *SCHEDULER_SIGNALS)


def signal_exit_code(name: str) -> int:
    """The exit code of a run that a signal stopped.

    130 after Ctrl-C, as in shells. After a scheduler's signal always 143, the code of a process
    ended by SIGTERM: it tells schedulers and scripts that the run was preempted and should be
    started again, rather than failed.
    """
    number = signal.Signals[name]
    return 128 + (signal.SIGTERM if number in SCHEDULER_SIGNALS else number)


class StopSignals:
    """Context in which signals set `received` to the signal's name instead of ending the process.

    Args:
        grace_seconds: how long after a scheduler's signal the process may run; None: no limit.
    """

    def __init__(self, grace_seconds: float | None = None) -> None:
        self.received: str | None = None
        self.grace_seconds = grace_seconds
        self._moment = self._began = 0.0
        self._clock: threading.Timer | None = None
        self._before: dict[int, object] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():  # only it may set handlers
            for number in CAUGHT_SIGNALS:
                self._before[number] = signal.signal(number, self._note)
        return self

    @property
    def seconds(self) -> float:
        """Time since the first signal."""
        return time.monotonic() - self._began

    def _note(self, number: int, frame: FrameType | None) -> None:
        echo = time.monotonic() - self._moment < REPEAT_SECONDS
        if self.received and number == signal.SIGINT and not echo:
            raise KeyboardInterrupt
        self._moment = time.monotonic()
        if self.received is None:
            self.received, self._began = signal.Signals(number).name, self._moment
        if number in SCHEDULER_SIGNALS and self._clock is None and self.grace_seconds is not None:
            self._clock = threading.Timer(self.grace_seconds, self._leave)
            self._clock.daemon = True
            self._clock.start()

    def _leave(self) -> None:
        assert self.received is not None
        limit = f"not done within {self.grace_seconds:g} s (run.grace_seconds)"
        line = f"{self.received}: {limit}; leaving with the last checkpoint that was whole.\n"
        os.write(2, line.encode())
        os._exit(signal_exit_code("SIGTERM"))  # the main thread may be in a call that never returns

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._clock is not None:
            self._clock.cancel()
        for number, handler in self._before.items():
            # None: the handler was not set from Python and cannot be restored
            signal.signal(number, signal.SIG_DFL if handler is None else handler)  # type: ignore[arg-type]
        self._before.clear()
