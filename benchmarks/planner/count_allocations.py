"""Tensors counted as they are allocated and freed in a real run: what a rehearsal is held to.

It shares no code with the rehearsal: each storage that an operation returns, or that a storage is
resized to, is added, and taken off when it is gone. What kernels take for themselves is not seen.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

import stepladder as sl

STEPS = 3
OPTIMIZER = "adamw lr=1e-3 clip=1"


class Counter(TorchDispatchMode):
    """Bytes of tensors in this process, now and at most, but for those on the meta device."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.sizes: dict[int, int] = {}
        self.resize = torch.UntypedStorage.resize_

    def __enter__(self) -> Any:
        torch.UntypedStorage.resize_ = lambda storage, size: self.resized(storage, size)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        torch.UntypedStorage.resize_ = self.resize

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) or "Async" in kind.__name__ for kind in types):
            return NotImplemented
        result = func(*args, **(kwargs or {}))
        for one in tree_iter(result):
            if isinstance(one, Tensor):
                self.add(one)
        return result

    def add(self, tensor: Tensor) -> None:
        tensor = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        if tensor.device.type != "meta" and tensor.layout == torch.strided:
            self.follow(tensor.untyped_storage())

    def follow(self, storage: torch.UntypedStorage) -> None:
        where = storage._cdata
        if where not in self.sizes:
            self.sizes[where] = 0
            weakref.finalize(storage, self.gone, where)
            self.set(where, storage.nbytes())

    def set(self, where: int, size: int) -> None:
        self.now += size - self.sizes[where]
        self.sizes[where] = size
        self.peak = max(self.peak, self.now)

    def gone(self, where: int) -> None:
        self.now -= self.sizes.pop(where)

    def resized(self, storage: torch.UntypedStorage, size: int) -> Any:
        if storage.device.type == "meta":
            return self.resize(storage, size)
        self.follow(storage)
        result = self.resize(storage, size)
        self.set(storage._cdata, size)
        return result


def count_run(module: nn.Module, plan: str, batch: Any, loss: Any) -> int:
    """The most that this rank's tensors take while it trains, which changes the module.

    The first step of a loss of the user's is left out: there it is tried on pieces of the batch.
    """
    return max(count_steps(module, plan, batch, loss, STEPS)[callable(loss) :])


def count_step(module: nn.Module, plan: str, batch: Any, loss: Any) -> int:
    """The most of a step on ranks: the least of many, as gloo may keep a message longer."""
    return min(count_steps(module, plan, batch, loss, steps=12)[2:])


def count_steps(module: nn.Module, plan: str, batch: Any, loss: Any, steps: int) -> list[int]:
    """The most that this rank's tensors take in each step; what comes before is of the first."""
    with Counter() as counter:
        for tensor in (*module.parameters(), *module.buffers()):
            counter.add(tensor)
        for tensor in tree_iter(batch):
            counter.add(tensor)
        run = sl.climb(module, loss=loss, optimizer=OPTIMIZER, plan=plan, device="cpu")
        peaks = []
        for _ in range(steps):
            run.step(batch, rows="rank")
            peaks.append(counter.peak)
            counter.peak = counter.now
        return peaks
