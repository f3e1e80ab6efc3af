"""Experiment trackers: a journal that also sends its entries to TensorBoard, W&B and others."""

from .targets import Target, parse_targets
from .tracked_journal import TrackedJournal, open_journal

__all__ = [
    "Target",
    "TrackedJournal",
    "open_journal",
    "parse_targets",
]
