"""Our own training step on fake tensors, in a fake world: memory and time before it is run."""

from .rehearsal import Rehearsal
from .rehearse_kinds import rehearse_kinds
from .rehearse_step import rehearse
from .time.step_time import StepTime, rehearse_time

__all__ = ["Rehearsal", "StepTime", "rehearse", "rehearse_kinds", "rehearse_time"]
