"""What takes a run's entries, on the rank that writes them and on others."""

from __future__ import annotations

from typing import Any, Protocol


class JournalWriter(Protocol):
    """Anything that takes journal entries."""

    def write(self, kind: str, **entry: Any) -> None: ...


class NullJournal:
    """The journal of a rank for which another one writes."""

    def write(self, kind: str, **entry: Any) -> None:
        pass
