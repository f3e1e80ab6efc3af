"""What happened, or would: one type for forecast and measurement. Standard library only."""

from .calibration import Calibration
from .forecast import Forecast, Interval
from .journal import Journal, read_journal
from .memory import Memory
from .report import Report
from .time import Time

__all__ = [
    "Calibration",
    "Forecast",
    "Interval",
    "Journal",
    "Memory",
    "Report",
    "Time",
    "read_journal",
]
