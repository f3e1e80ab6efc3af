"""Hardware × workload × plan → record, before a device-hour is spent. Standard library only."""

from .advice import explain_out_of_memory
from .check import RULES, check, divisors, problems
from .choices import Choices
from .explain import Explanation, explain, family_of
from .forecast import forecast
from .host import HOST_FACTORS, part_asking, products_of
from .memory import forecast_moments, forecast_state
from .search import search
from .software import OURS, Software
from .stages import bubble_share, in_flight, stages_of

__all__ = [
    "HOST_FACTORS",
    "OURS",
    "RULES",
    "Choices",
    "Explanation",
    "Software",
    "bubble_share",
    "check",
    "divisors",
    "explain",
    "explain_out_of_memory",
    "family_of",
    "forecast",
    "forecast_moments",
    "forecast_state",
    "in_flight",
    "part_asking",
    "problems",
    "products_of",
    "search",
    "stages_of",
]
