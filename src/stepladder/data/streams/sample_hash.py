"""A hash of one sample, to tell if two processes, or two readings, were given the same one."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

MOST_BYTES = 1 << 16  # of an array: more would take longer than reading the sample


def hash_samples(*samples: Any) -> int:
    """A whole number of 62 bits above 0, the same in every process."""
    found = hashlib.blake2b(digest_size=8)
    for part in _parts(samples):
        found.update(part)
    return max(1, int.from_bytes(found.digest(), "little") >> 2)


def _parts(value: Any) -> Iterator[bytes]:
    if isinstance(value, dict):
        for name, part in value.items():
            yield str(name).encode()
            yield from _parts(part)
    elif isinstance(value, (tuple, list)):
        yield f"{len(value)} parts".encode()
        for part in value:
            yield from _parts(part)
    elif isinstance(value, (torch.Tensor, np.ndarray)):
        yield str((tuple(value.shape), value.dtype)).encode()
        flat = torch.as_tensor(value).detach().cpu().reshape(-1).view(torch.uint8)
        yield flat[:MOST_BYTES].contiguous().numpy().tobytes()
    elif isinstance(value, (str, bytes, int, float, bool, type(None))):
        yield repr(value).encode()
    else:  # an address in its text would differ from process to process
        yield type(value).__name__.encode()
