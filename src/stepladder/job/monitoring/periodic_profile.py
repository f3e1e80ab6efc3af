"""One step in many under the profiler while a run trains, for the dashboard's timelines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stepladder.record.journal_writer import JournalWriter
from stepladder.train import Run
from stepladder.train.profile_steps import profile_one_step


def profile_periodically(
    steps: Iterator[Any], run: Run, journal: JournalWriter, every: int
) -> Iterator[Any]:
    """The same steps, those at a multiple of `every` taken under the profiler; 0: none."""
    while True:
        index = run.index
        try:
            if every and index and index % every == 0:
                taken, seen = profile_one_step(run, lambda: next(steps))
                for kind, entry in seen.entries(index).items():
                    journal.write(kind, **entry)
            else:
                taken = next(steps)
        except StopIteration:
            return
        yield taken
