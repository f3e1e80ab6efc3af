"""What happened, or would: one type for forecast and measurement. Standard library only."""

from .cache import cache_path, replace_whole
from .calibration import (
    HOST,
    Calibration,
    Correction,
    Timing,
    calibration_path,
    load_calibration,
    pace_of,
)
from .cost import dollars, kilowatt_hours
from .forecast import Forecast, Interval
from .journal import Journal, clean, journal_path, read_journal, read_line
from .memory import Memory
from .profile import CAUSES, Finding, Profile
from .report import Report
from .time import Time

__all__ = [
    "CAUSES",
    "HOST",
    "Calibration",
    "Correction",
    "Finding",
    "Forecast",
    "Interval",
    "Journal",
    "Memory",
    "Profile",
    "Report",
    "Time",
    "Timing",
    "cache_path",
    "calibration_path",
    "clean",
    "dollars",
    "journal_path",
    "kilowatt_hours",
    "load_calibration",
    "pace_of",
    "read_journal",
    "read_line",
    "replace_whole",
]
