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
from .report import Report
from .time import Time

__all__ = [
    "Calibration",
    "Correction",
    "Forecast",
    "Interval",
    "Journal",
    "Memory",
    "Report",
    "Time",
    "Timing",
    "calibration_path",
    "load_calibration",
    "read_journal",
]
