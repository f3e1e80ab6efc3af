"""Run folders made visible. Standard library only; the web server stands in `dashboard.web`."""

from .journal_index import JournalIndex

__all__ = [
    "JournalIndex",
]
