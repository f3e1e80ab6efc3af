"""Our own training step on fake tensors, in a fake world: memory and time before it is run."""

from .rehearse_kinds import rehearse_kinds
from .rehearse_step import rehearse
from .rehearsed_changes import rehearse_failure
from .rehearsed_plan import forecast_by_rehearsal
from .time.step_time import StepTime, rehearse_time

__all__ = [
    "StepTime",
    "forecast_by_rehearsal",
    "rehearse",
    "rehearse_failure",
    "rehearse_kinds",
    "rehearse_time",
]
