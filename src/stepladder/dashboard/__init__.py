"""The dashboard's data, read from run folders without torch; `dashboard.web` serves it."""

from .journal_index import JournalIndex

__all__ = [
    "JournalIndex",
]
