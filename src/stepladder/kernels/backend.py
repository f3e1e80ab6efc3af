"""Which of two ways an operator runs: Triton where it can, the same arithmetic in torch elsewhere.

Triton decides between its compiler and its interpreter as each kernel is decorated, so the answer
is fixed at import; setting TRITON_INTERPRET afterwards changes nothing.
"""

from functools import cache

import torch
from torch import Tensor

try:
    import triton
except ModuleNotFoundError:  # no wheel for this platform; the torch arithmetic serves
    triton = None

INTERPRETED = triton is not None and triton.knobs.runtime.interpret
TILED = (torch.float32, torch.bfloat16, torch.float16)


def runs_triton(tensor: Tensor) -> bool:
    """True where a Triton program can read this tensor; float64 stays with torch, in full."""
    reachable = triton is not None and (tensor.is_cuda or INTERPRETED)
    return reachable and tensor.dtype in TILED


def accumulator(tensor: Tensor) -> torch.dtype:
    """The type sums are kept in: float32, or float64 for a tensor that is float64."""
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


@cache
def num_processors(device: torch.device) -> int:
    """Multiprocessors of a device; for the interpreter 1, so each program has many rows."""
    if device.type != "cuda":
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count
