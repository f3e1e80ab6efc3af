"""One technique a file, and the order they are climbed in."""

from .accumulate import Accumulate, call
from .alike import average_buffers
from .budget import BlockCost
from .ceiling import Ceiling, is_out_of_memory
from .climb import Climbed, climb
from .kernels import adamw_
from .loss import Loss, make_loss
from .pieces import Piece, local, sliced_axes, squares
from .pipeline import Pipeline
from .precision import matrix_units, working
from .saved import measure_blocks
from .scaling import LossScale
from .turns import Event

__all__ = [
    "Accumulate",
    "BlockCost",
    "Ceiling",
    "Climbed",
    "Event",
    "Loss",
    "LossScale",
    "Piece",
    "Pipeline",
    "adamw_",
    "average_buffers",
    "call",
    "climb",
    "is_out_of_memory",
    "local",
    "make_loss",
    "matrix_units",
    "measure_blocks",
    "sliced_axes",
    "squares",
    "working",
]
