"""Time per step, and the arithmetic rate it means: what a report says of speed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

from .compile_events import CompileEvents, Steps


@dataclass(slots=True)
class Clock:
    """Seconds a step took, averaged over the steps since it was last read."""

    compiler: CompileEvents = field(default_factory=CompileEvents)
    _since: float = field(default_factory=time.perf_counter)
    _step: int = 0
    _waited: float = 0.0  # for data, since last read
    _left_out: tuple[int, float] = (0, 0.0)  # steps since last read that do not count, and seconds
    _last: tuple[float, float] | None = None  # what was last read

    def compiling(self, engine: Steps) -> AbstractContextManager[None]:
        """Context of one step, after which the engine's events say what it compiled."""
        return self.compiler.recording_events(engine)

    def restart(self, step: int) -> None:
        self._since, self._step, self._waited = time.perf_counter(), step, 0.0
        self._left_out = (0, 0.0)

    @contextmanager
    def leave_out_step(self) -> Iterator[None]:
        """Context of one step that is slower than others for a reason, as under the profiler."""
        began, waited = time.perf_counter(), self._waited
        yield
        steps, seconds = self._left_out
        self._left_out = (steps + 1, seconds + time.perf_counter() - began)
        self._waited = waited

    def wait(self, seconds: float) -> None:
        """Note time spent waiting for a batch."""
        self._waited += seconds

    def read(self, step: int) -> tuple[float, float]:
        """Seconds a step, and of those waiting for data, up to and including `step`.

        A step that does not count has the time of those before it.
        """
        left_out, lost = self._left_out
        steps = step + 1 - self._step - left_out
        if steps <= 0 and self._last is not None:
            self.restart(max(step + 1, self._step))
            return self._last
        seconds = (time.perf_counter() - self._since - lost * (steps > 0)) / max(steps, 1)
        self._last = seconds, self._waited / max(steps, 1)
        self.restart(step + 1)
        return self._last
