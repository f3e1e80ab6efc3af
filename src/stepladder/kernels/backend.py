"""Whether an operator runs its Triton program or the same arithmetic in torch.

Triton chooses between its compiler and its interpreter as each kernel is decorated, so the answer
is fixed at import; setting TRITON_INTERPRET afterwards changes nothing.
"""

from functools import cache

import torch
from torch import Tensor

try:
    import triton
except ModuleNotFoundError:  # no wheel for this platform: torch does the arithmetic
    triton = None

INTERPRETED = triton is not None and triton.knobs.runtime.interpret
TRITON_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def runs_triton(tensor: Tensor) -> bool:
    """Whether a Triton program can read this tensor; float64 is left to torch."""
    reachable = triton is not None and (tensor.is_cuda or INTERPRETED)
    return reachable and tensor.dtype in TRITON_DTYPES


def accumulator(tensor: Tensor) -> torch.dtype:
    """The type to sum in: float32, or float64 for a float64 tensor."""
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


@cache
def num_multiprocessors(device: torch.device) -> int:
    """Multiprocessors of a device; 1 for the interpreter, so that each program has many rows."""
    if device.type != "cuda":
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count
