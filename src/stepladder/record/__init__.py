"""What happened, or would: one type for forecast and measurement. Standard library only."""

from .calibration import (
    Calibration,
    Correction,
    Timing,
    calibration_path,
    load_calibration,
)
from .forecast import Forecast, Interval
from .journal import Journal, read_journal
from .memory import Memory
from .profile import CAUSES, Finding, Profile
from .report import Report
from .time import Time

__all__ = [
    "CAUSES",
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
    "calibration_path",
    "load_calibration",
    "read_journal",
]
