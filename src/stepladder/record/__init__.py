"""Records of a run: one type for forecast and measurement, and the journal. No torch needed."""

from .calibration import Calibration, Timing, calibration_path, correction_key, load_calibration
from .forecast import Forecast, Interval
from .journal import Journal, journal_path, read_journal
from .memory_by_owner import Memory
from .profile import Profile
from .rehearsal import Rehearsal
from .report import Report
from .time_by_cause import Time

__all__ = [
    "Calibration",
    "Forecast",
    "Interval",
    "Journal",
    "Memory",
    "Profile",
    "Rehearsal",
    "Report",
    "Time",
    "Timing",
    "calibration_path",
    "correction_key",
    "journal_path",
    "load_calibration",
    "read_journal",
]
