"""How a module learns: one step, the loop, the checkpoint."""

from .auto_plan import facts_for
from .lightning import from_lightning
from .loop import fit
from .run import Run
from .start import climb
from .step_batch import as_batch

__all__ = [
    "Run",
    "as_batch",
    "climb",
    "facts_for",
    "fit",
    "from_lightning",
]
