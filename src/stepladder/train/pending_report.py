"""A report that is still on the device: reading its numbers is what waits for it.

`run.step` returns at once. `report.step` is known without waiting; any other field waits for the
device, once, and from then on the report is plain numbers. Time is measured between two reports
that were read, divided by the steps between them: that is the rate the device kept up, whether
every step was read or every hundredth.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stepladder.record import Report


class PendingReport:
    """Reads like a `Report`."""

    __slots__ = ("_report", "_resolve", "step")

    def __init__(self, step: int, resolve: Callable[[], Report]) -> None:
        self.step = step
        self._resolve: Callable[[], Report] | None = resolve
        self._report: Report | None = None

    def read(self) -> Report:
        """The numbers. Waits for the device the first time."""
        if self._report is None:
            assert self._resolve is not None
            self._report = self._resolve()
            self._resolve = None  # let go of the device tensors it held
        return self._report

    def __getattr__(self, name: str) -> Any:
        return getattr(self.read(), name)
