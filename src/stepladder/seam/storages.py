"""Which storage a tensor lies in, and how often it was written to."""

from __future__ import annotations

import torch
from torch import Tensor

from .lookup import find, has

ADDRESS, VERSION = "torch.UntypedStorage._cdata", "torch.Tensor._version"


def storage_id(storage: torch.UntypedStorage) -> int:
    """A number that no other living storage has, of fake tensors too, which have no address."""
    return storage._cdata if has(ADDRESS) else id(storage)


def version_of(tensor: Tensor) -> int:
    """How many times the tensor, or a view of it, was written to in place."""
    find(VERSION)
    return tensor._version
