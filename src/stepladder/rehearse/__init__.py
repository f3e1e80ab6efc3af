"""Our own training step on fake tensors, in a fake world: its memory before it is run."""

from .rehearsal import Rehearsal
from .rehearse_kinds import rehearse_kinds
from .rehearse_step import rehearse

__all__ = ["Rehearsal", "rehearse", "rehearse_kinds"]
