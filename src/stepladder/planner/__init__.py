"""Forecasts of memory and time of a plan on a cluster, and the search for the best plan."""

from .forecast import forecast
from .legality import check_plan, plan_problems
from .memory.forecast_memory import forecast_moments, forecast_state
from .pipeline_stages import bubble_share
from .plan_model import PlanResult, plan
from .search import search
from .time.host_time import part_launch_cost

__all__ = [
    "PlanResult",
    "bubble_share",
    "check_plan",
    "forecast",
    "forecast_moments",
    "forecast_state",
    "part_launch_cost",
    "plan",
    "plan_problems",
    "search",
]
