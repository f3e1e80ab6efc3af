"""Where people already look: a journal whose entries also reach the trackers they use."""

from .device import DeviceSampler
from .journal import TrackedJournal, open_journal
from .targets import Target, parse_targets

__all__ = ["DeviceSampler", "Target", "TrackedJournal", "open_journal", "parse_targets"]
