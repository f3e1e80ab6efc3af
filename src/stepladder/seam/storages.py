"""Which storage a tensor lies in, how often it was written to, and when it is resized."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .dispatch import wraps_tensors
from .lookup import find, has
from .pytree import tree_leaves

ADDRESS, VERSION = "torch.UntypedStorage._cdata", "torch.Tensor._version"


def storage_id(storage: torch.UntypedStorage) -> int:
    """A number that no other living storage has, of fake tensors too, which have no address."""
    return storage._cdata if has(ADDRESS) else id(storage)


def version_of(tensor: Tensor) -> int:
    """How many times the tensor, or a view of it, was written to in place."""
    find(VERSION)
    return tensor._version


def plain_tensors(tree: Any) -> list[Tensor]:
    """The tensors in a tree that have a storage, those inside tensor subclasses included."""
    found: list[Tensor] = []
    for leaf in tree_leaves(tree):
        if wraps_tensors(type(leaf)):
            names, _ = leaf.__tensor_flatten__()
            found += plain_tensors([getattr(leaf, name) for name in names])
        elif isinstance(leaf, Tensor):
            found.append(leaf)
    return found


def resize_noticed(
    resize: Callable[..., Any], notice: Callable[[torch.UntypedStorage, int], None]
) -> Callable[..., Any]:
    """Resizing a storage dispatches nothing, so it is watched by name.

    Args:
        notice: told of each storage and of the bytes that it had.
    """

    def resize_(storage: torch.UntypedStorage, size: int) -> Any:
        before = storage.nbytes()
        result = resize(storage, size)
        notice(storage, before)
        return result

    return resize_
