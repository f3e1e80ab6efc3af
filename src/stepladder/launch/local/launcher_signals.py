"""Signals of a launcher: passed on to its ranks, which save and stop.

A person's second Ctrl-C ends them at once. A scheduler's signals may come several times (SIGUSR1 as
a warning, SIGTERM at the end), and none of them cuts a save short.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from types import FrameType

import psutil

from stepladder.world import signal_exit_code

PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


@dataclass
class Signals:
    """Context that passes signals on to the ranks; a second Ctrl-C ends them."""

    received: int = 0  # the first signal
    rank_processes: Callable[[], Iterable[int]] = tuple  # the agent's, once there is one
    _before: dict[int, object] = field(default_factory=dict)
    _other_children: set[int] = field(default_factory=set)  # there before any rank

    def __enter__(self) -> Signals:
        self._other_children = {child.pid for child in psutil.Process().children()}
        self._before = {number: signal.signal(number, self._pass_on) for number in PASSED_ON}
        return self

    @property
    def code(self) -> int:
        """What to end with."""
        return signal_exit_code(signal.Signals(self.received).name)

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        again, self.received = bool(self.received), self.received or number
        ranks = self._ranks()
        if not ranks:
            raise SystemExit(self.code)  # nothing runs that could be saved
        now = signal.SIGKILL if again and number == signal.SIGINT else number
        for pid in ranks:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, now)  # each leads a session

    def _ranks(self) -> set[int]:
        """The agent's processes; while it starts them, every child that came since.

        The program may start children of its own beside the ranks: those are left alone.
        """
        children = {child.pid for child in psutil.Process().children()}
        return children & set(self.rank_processes()) or children - self._other_children

    def __exit__(self, *exit: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
