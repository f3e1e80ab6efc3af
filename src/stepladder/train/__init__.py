"""How a module learns: one step, the loop, the checkpoint."""

from .in_loop.best_checkpoint import BestCheckpoint
from .in_loop.early_stopping import EarlyStopping
from .in_loop.ema import EMA
from .in_loop.notebook_progress import NotebookProgress
from .in_loop.save_together import resume_together, save_together
from .lightning import from_lightning
from .loop import fit
from .run import Run
from .start import climb
from .step_batch import as_batch
from .tuning.planner_inputs import facts_for

__all__ = [
    "EMA",
    "BestCheckpoint",
    "EarlyStopping",
    "NotebookProgress",
    "Run",
    "as_batch",
    "climb",
    "facts_for",
    "fit",
    "from_lightning",
    "resume_together",
    "save_together",
]
