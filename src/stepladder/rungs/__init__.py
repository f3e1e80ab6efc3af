"""One technique a file, and the order they are climbed in."""

from .accumulate import call
from .climb import Climbed
from .data_parallel.broadcast_parameters import average_buffers
from .memory.measure_saved import measure_blocks
from .memory.memory_limit import Ceiling, is_out_of_memory
from .memory.recompute_budget import BlockCost
from .parameter_shards import Piece, local, sliced_axes
from .precision.loss_scale import LossScale
from .precision.precision import matrix_units

__all__ = [
    "BlockCost",
    "Ceiling",
    "Climbed",
    "LossScale",
    "Piece",
    "average_buffers",
    "call",
    "is_out_of_memory",
    "local",
    "matrix_units",
    "measure_blocks",
    "sliced_axes",
]
