"""A rank's memory, kept below a limit: the operation that goes beyond it fails.

Tensors are counted, not the process: torch alone takes hundreds of MiB, beside which a lesson's
model would not be seen, and the count is the same on every machine. Every storage an operation
touched is remembered weakly and asked for its size after each operation, because sharding empties
and refills storages that stay alive.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor

from stepladder.errors import OutOfMemory
from stepladder.seam.dispatch import DispatchMode, operator_name, wraps_tensors
from stepladder.seam.pytree import tree_leaves
from stepladder.seam.storages import storage_id


class MemoryLimit(DispatchMode):
    """Context in which this process's tensors may take so many bytes; `peak_bytes` is their most.

    Without a number it only counts.
    """

    def __init__(self, limit_bytes: int | None = None) -> None:
        super().__init__()
        self.limit_bytes = limit_bytes
        self.peak_bytes = 0
        self.seen: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(wraps_tensors(kind) for kind in types):
            return NotImplemented  # the operation comes back on the plain tensors inside
        result = op(*args, **(kwargs or {}))
        grown = op.namespace != "aten"  # sharding's own operations refill storages
        for leaf in tree_leaves((args, kwargs, result)):
            if isinstance(leaf, Tensor) and leaf.device.type == "cpu":
                storage = leaf.untyped_storage()
                key = storage_id(storage)
                if (held := self.seen.get(key)) is None or held() is not storage:
                    self.seen[key] = weakref.ref(storage)
                    grown = True
        if grown:
            self.look(op)
        return result

    @property
    def live_bytes(self) -> int:
        """What stands now."""
        total = 0
        gone: list[int] = []
        for key, held in self.seen.items():
            storage = held()
            if storage is None:
                gone.append(key)
            else:
                total += storage.nbytes()
        for key in gone:
            del self.seen[key]
        return total

    def look(self, op: Any) -> None:
        now = self.live_bytes
        self.peak_bytes = max(self.peak_bytes, now)
        if self.limit_bytes is not None and now > self.limit_bytes:
            raise OutOfMemory(
                "memory",
                f"{operator_name(op)} made it {now / 1024:.0f} KiB of tensors on this rank, which "
                f"may hold {self.limit_bytes / 1024:.0f}",
                "Hold less at once.",
            )
