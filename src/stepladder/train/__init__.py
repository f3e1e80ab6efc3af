"""How a module learns: one step, the loop, the checkpoint."""

from .choose import Choice, choose_plan, cluster_for, facts_for
from .lightning import Stepped, Whole, from_lightning
from .loop import fit
from .pending import PendingReport
from .profile import Glance, glance, outlook_of
from .rows import rows_of
from .run import Run
from .sampling import sample_bytes
from .start import climb

__all__ = [
    "Choice",
    "Glance",
    "PendingReport",
    "Run",
    "Stepped",
    "Whole",
    "choose_plan",
    "climb",
    "cluster_for",
    "facts_for",
    "fit",
    "from_lightning",
    "glance",
    "outlook_of",
    "rows_of",
    "sample_bytes",
]
