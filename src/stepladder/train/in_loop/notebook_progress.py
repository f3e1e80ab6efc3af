"""A training loop in a notebook: one table below the cell, brought up to date in its place."""

from __future__ import annotations

import sys
import time
from importlib import import_module
from typing import Any

from stepladder.errors import TrainingError
from stepladder.record import Report
from stepladder.record.html_table import html_table
from stepladder.train.pending_report import PendingReport

SECONDS = 0.25  # between two updates: reading a report waits for the device


class NotebookProgress:
    """Shows reports in a notebook. Called with the report of every step; elsewhere shows nothing.

    >>> progress = NotebookProgress(steps=10)
    >>> report = Report(
    ...     step=9, loss=2.5, grad_norm=1.0, lr=0.1, tokens=64, seconds=0.5,
    ...     memory_bytes=2**30, tokens_per_second=128.0,
    ... )
    >>> progress(report)
    >>> print(progress)
    step 10 of 10, loss 2.5000, 128 tokens/s

    Args:
        steps: of the whole run; None: unknown.
    """

    def __init__(self, steps: int | None = None) -> None:
        if steps is not None and (isinstance(steps, bool) or not isinstance(steps, int)):
            problem = f"{steps!r} is not a number of steps"
            raise TrainingError("steps", problem, "Give how many the run takes, or leave it out.")
        self.steps = steps
        self.report: Report | None = None
        self._shown = 0.0  # when it was last brought up to date
        self._handle: Any = None  # of what stands below the cell

    def __call__(self, report: Report | PendingReport) -> None:
        now, last = time.monotonic(), report.step + 1 == self.steps
        if now - self._shown < SECONDS and not last:
            return
        self._shown = now
        self.report = report.read() if isinstance(report, PendingReport) else report
        if self._handle is not None:
            self._handle.update(self)
        elif in_notebook():
            display = import_module("IPython.display").display
            self._handle = display(self, display_id=True)

    def figures(self) -> dict[str, str]:
        if self.report is None:
            return {}
        found = self.report.figures()
        of = f" of {self.steps:,}" if self.steps else ""
        return {**found, "step": f"{self.report.step + 1:,}{of}"}

    def __str__(self) -> str:
        found = self.figures()
        unit = f"{self.report.unit}/s" if self.report else ""
        return f"step {found['step']}, loss {found['loss']}, {found[unit]} {unit}" if found else ""

    __repr__ = __str__

    def _repr_html_(self) -> str:
        share = (self.report.step + 1) / self.steps if self.report and self.steps else None
        bar = "" if share is None else f'<progress value="{share:.4f}" max="1"></progress>'
        return bar + html_table("", self.figures().items())


def in_notebook() -> bool:
    """Whether a notebook's kernel runs this; a terminal's IPython is none."""
    shell = sys.modules.get("IPython")
    found = shell.get_ipython() if shell else None
    return found is not None and hasattr(found, "kernel")
