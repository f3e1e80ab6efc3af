"""Hardware × workload × plan → record, before a device-hour is spent. Standard library only."""

from .check import RULES, check, problems
from .choices import Choice, Choices, Rejected
from .explain import Explanation, explain, family_of
from .forecast import forecast
from .search import search
from .software import OURS, Software
from .stages import Stage, stages_of

__all__ = [
    "OURS",
    "RULES",
    "Choice",
    "Choices",
    "Explanation",
    "Rejected",
    "Software",
    "Stage",
    "check",
    "explain",
    "family_of",
    "forecast",
    "problems",
    "search",
    "stages_of",
]
