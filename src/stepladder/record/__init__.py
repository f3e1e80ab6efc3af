"""What happened, or would: one type for forecast and measurement. Standard library only."""

from .journal import Journal, read_journal
from .memory import Memory
from .report import Report
from .time import Time

__all__ = ["Journal", "Memory", "Report", "Time", "read_journal"]
