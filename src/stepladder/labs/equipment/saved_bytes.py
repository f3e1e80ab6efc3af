"""What autograd keeps for backward, counted as it comes and goes: the labs' memory meter."""

from __future__ import annotations

import weakref
from collections import Counter

from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks


class Box:
    """Holds a saved tensor; autograd drops the box when it drops the tensor."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


class Kept(saved_tensors_hooks):
    """Counts the storages that autograd holds, parameters left out, and the most it ever held."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(self._keep, lambda box: box.tensor)
        self.known = {p.untyped_storage()._cdata for p in model.parameters()}
        self.holders: Counter[int] = Counter()
        self.bytes = self.peak_bytes = 0

    def __enter__(self) -> Kept:  # type: ignore[override]
        super().__enter__()
        return self

    def _keep(self, tensor: Tensor) -> Box:
        storage = tensor.untyped_storage()
        box = Box(tensor.detach())  # cut off: a graph that holds its own result is never let go
        if storage._cdata not in self.known:
            weakref.finalize(box, self._let_go, storage._cdata, storage.nbytes())
            self.bytes += storage.nbytes() * (not self.holders[storage._cdata])
            self.holders[storage._cdata] += 1
            self.peak_bytes = max(self.peak_bytes, self.bytes)
        return box

    def _let_go(self, address: int, num_bytes: int) -> None:
        self.holders[address] -= 1
        self.bytes -= num_bytes * (not self.holders[address])
