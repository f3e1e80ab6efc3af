"""How a module learns: one step, the loop, the checkpoint."""

from .choose import choose_plan
from .loop import fit
from .pending import PendingReport
from .run import Run
from .sampling import sample_bytes
from .start import climb

__all__ = ["PendingReport", "Run", "choose_plan", "climb", "fit", "sample_bytes"]
