"""What takes a run's entries, on the rank that writes them and on others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol

from stepladder.errors import RecordError


class JournalWriter(Protocol):
    """Anything that takes journal entries."""

    def write(self, kind: str, **entry: Any) -> None: ...


class NullJournal:
    """The journal of a rank for which another one writes."""

    def write(self, kind: str, **entry: Any) -> None:
        pass


@contextmanager
def note_end(journal: JournalWriter) -> Iterator[None]:
    """Context whose end is written to the journal: by itself, or by which failure."""
    try:
        yield
    except BaseException as failed:
        said = f"{type(failed).__name__}: {failed}".strip().splitlines()[0].rstrip(": ")
        with suppress(RecordError):  # the first error is the reason
            journal.write("end", failure=said[:300])
        raise
    journal.write("end")
