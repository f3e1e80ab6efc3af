"""Where people already look: a journal whose entries also reach the trackers they use."""

from .targets import Target, parse_targets
from .tracked_journal import TrackedJournal, open_journal

__all__ = [
    "Target",
    "TrackedJournal",
    "open_journal",
    "parse_targets",
]
