"""Hardware × workload × plan → record, before a device-hour is spent. Standard library only."""

from .forecast import forecast
from .legality import check, problems
from .memory.forecast_memory import forecast_moments, forecast_state
from .pipeline_stages import bubble_share
from .plan_model import PlanResult, plan
from .search import search
from .time.host_time import part_asking

__all__ = [
    "PlanResult",
    "bubble_share",
    "check",
    "forecast",
    "forecast_moments",
    "forecast_state",
    "part_asking",
    "plan",
    "problems",
    "search",
]
