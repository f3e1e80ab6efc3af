"""The scaling ladder: one technique a folder or file, and climb.py, which applies them in order."""

from .climb import Climbed
from .data_parallel.buffer_copies import averaged_buffers, fingerprint
from .memory.measure_saved import measure_blocks
from .memory.memory_limit import MemoryLimit, is_out_of_memory
from .memory.recompute_budget import BlockCost
from .parameter_shards import ParameterShard, local, sliced_axes
from .precision.loss_scale import LossScale
from .precision.precision import float32_matmul_mode

__all__ = [
    "BlockCost",
    "Climbed",
    "LossScale",
    "MemoryLimit",
    "ParameterShard",
    "averaged_buffers",
    "fingerprint",
    "float32_matmul_mode",
    "is_out_of_memory",
    "local",
    "measure_blocks",
    "sliced_axes",
]
