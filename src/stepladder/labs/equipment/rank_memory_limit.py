"""A rank's memory, kept below a limit: the operation that goes beyond it fails.

Tensors are counted, not the process: torch alone takes hundreds of MiB, beside which a lesson's
model would not be seen, and the count is the same on every machine. Every storage an operation
touched is remembered weakly and asked for its size after each operation, because sharding empties
and refills storages that stay alive.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass_type
from torch.utils._pytree import tree_leaves

from stepladder.errors import OutOfMemory


class MemoryLimit(TorchDispatchMode):
    """Context in which this process's tensors may take so many bytes; `peak_bytes` is their most.

    Without a number it only counts.
    """

    def __init__(self, limit_bytes: int | None = None) -> None:
        super().__init__()
        self.limit_bytes = limit_bytes
        self.peak_bytes = 0
        self.seen: dict[int, StorageWeakRef] = {}

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(is_traceable_wrapper_subclass_type(kind) for kind in types):
            return NotImplemented  # the operation comes back on the plain tensors inside
        result = op(*args, **(kwargs or {}))
        grown = op.namespace != "aten"  # sharding's own operations refill storages
        for leaf in tree_leaves((args, kwargs, result)):
            if isinstance(leaf, Tensor) and leaf.device.type == "cpu":
                storage = leaf.untyped_storage()
                if (held := self.seen.get(storage._cdata)) is None or held.expired():
                    self.seen.pop(storage._cdata, None)
                    self.seen[storage._cdata] = StorageWeakRef(storage)
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
            storage = torch.UntypedStorage._new_with_weak_ptr(held.cdata)
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
                f"{op._opname} made it {now / 1024:.0f} KiB of tensors on this rank, which may "
                f"hold {self.limit_bytes / 1024:.0f}",
                "Hold less at once.",
            )
