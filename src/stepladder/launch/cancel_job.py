"""A launcher of somebody else's job that is asked to stop: it cancels the job, once.

The job then saves and ends as it would on this machine, and its launcher waits for that. A second
Ctrl-C leaves at once.
"""

from __future__ import annotations

import signal
import time
from types import FrameType

from stepladder.world import signal_exit_code

HEARD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


class Asked:
    """Context in which signals are noted; `wait` ends early when one comes."""

    def __init__(self) -> None:
        self.signal = 0
        self._before: dict[int, object] = {}

    def __enter__(self) -> Asked:
        self._before = {number: signal.signal(number, self._note) for number in HEARD}
        return self

    def __exit__(self, *exit: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def __bool__(self) -> bool:
        return bool(self.signal)

    @property
    def code(self) -> int:
        """What to end with."""
        return signal_exit_code(signal.Signals(self.signal).name)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = self.signal or number

    def wait(self, seconds: float) -> None:
        """Sleep, but not past the first signal."""
        already, end = self.signal, time.monotonic() + seconds
        while time.monotonic() < end and self.signal == already:
            time.sleep(0.05)
