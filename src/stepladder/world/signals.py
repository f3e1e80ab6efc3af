"""Being asked to stop: Ctrl-C and a scheduler's signals become a flag the loop reads between steps.

An interrupt in the middle of an optimizer step would leave half-updated parameters; a flag lets
the step finish and the checkpoint be whole. A second Ctrl-C interrupts at once, unless it follows
so fast that it is the first again: a terminal sends it to every process, and a launcher repeats it.
"""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType, TracebackType

ECHO_SECONDS = 0.5
CAUGHT = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


class Stop:
    """Context in which signals set `asked` to the signal's name instead of ending the process."""

    def __init__(self) -> None:
        self.asked: str | None = None
        self._moment = 0.0
        self._before: dict[int, object] = {}

    def __enter__(self) -> Stop:
        if threading.current_thread() is threading.main_thread():  # only it may set handlers
            for number in CAUGHT:
                self._before[number] = signal.signal(number, self._note)
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        echo = time.monotonic() - self._moment < ECHO_SECONDS
        if self.asked and number == signal.SIGINT and not echo:
            raise KeyboardInterrupt
        self._moment = time.monotonic()
        self.asked = signal.Signals(number).name

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            # None: whoever set it was not Python, and cannot be put back from here
            signal.signal(number, signal.SIG_DFL if handler is None else handler)  # type: ignore[arg-type]
        self._before.clear()
