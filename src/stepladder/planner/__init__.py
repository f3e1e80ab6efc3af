"""Hardware × workload × plan → record, before a device-hour is spent. Standard library only."""

from .forecast import forecast
from .software import OURS, Software

__all__ = ["OURS", "Software", "forecast"]
