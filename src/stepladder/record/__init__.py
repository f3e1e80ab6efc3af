"""What happened, or would: one type for forecast and measurement. Standard library only."""

from .calibration import Calibration, Timing, calibration_path, load_calibration, pace_of
from .forecast import Forecast, Interval
from .journal import Journal, journal_path, read_journal
from .memory_by_owner import Memory
from .profile import Profile
from .report import Report
from .time_by_cause import Time

__all__ = [
    "Calibration",
    "Forecast",
    "Interval",
    "Journal",
    "Memory",
    "Profile",
    "Report",
    "Time",
    "Timing",
    "calibration_path",
    "journal_path",
    "load_calibration",
    "pace_of",
    "read_journal",
]
