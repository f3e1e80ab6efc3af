"""What autograd keeps for backward, counted as it comes and goes: the labs' memory meter."""

from __future__ import annotations

import weakref
from collections import Counter

from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from stepladder.seam.storages import storage_id


class Box:
    """Holds a saved tensor; autograd drops the box when it drops the tensor."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


class Kept(saved_tensors_hooks):
    """Counts the storages that autograd holds, parameters left out, and the most it ever held."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(self._keep, lambda box: box.tensor)
        self.known = {storage_id(p.untyped_storage()) for p in model.parameters()}
        self.holders: Counter[int] = Counter()
        self.bytes = self.peak_bytes = 0

    def __enter__(self) -> Kept:  # type: ignore[override]
        super().__enter__()
        return self

    def _keep(self, tensor: Tensor) -> Box:
        storage = tensor.untyped_storage()
        box = Box(tensor.detach())  # cut off: a graph that holds its own result is never let go
        if (where := storage_id(storage)) not in self.known:
            weakref.finalize(box, self._let_go, where, storage.nbytes())
            self.bytes += storage.nbytes() * (not self.holders[where])
            self.holders[where] += 1
            self.peak_bytes = max(self.peak_bytes, self.bytes)
        return box

    def _let_go(self, address: int, num_bytes: int) -> None:
        self.holders[address] -= 1
        self.bytes -= num_bytes * (not self.holders[address])
