"""The bytes of a tensor, in the order of its elements."""

from __future__ import annotations

import torch
from torch import Tensor


def as_bytes(tensor: Tensor) -> Tensor:
    """Return the bytes of a tensor of any numeric type, without copying where its memory allows.

    >>> import torch
    >>> as_bytes(torch.tensor([1, 2], dtype=torch.int16)).tolist()
    [1, 0, 2, 0]
    """
    flat = tensor.detach().resolve_conj().resolve_neg().reshape(-1).contiguous()
    if flat.stride(0) != 1:  # one number that was expanded counts as contiguous
        flat = flat.clone(memory_format=torch.contiguous_format)
    return flat.view(torch.uint8)
