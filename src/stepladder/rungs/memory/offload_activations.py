"""Rung: activation offloading: saved activations wait in host memory between forward and backward.

Autograd hands over every tensor it saves. Its storage is copied once, however many views of it are
saved, so strides are restored exactly and the arithmetic stays the same to the bit. On a GPU the
copies overlap with compute: to the host on a side stream with at most `AHEAD` in flight, and back
one storage ahead of the backward pass. torch's own `save_on_cpu` copies on the compute stream, once
for each view, and also copies parameters and their casts, which stay in memory anyway.

On a CPU the copies are made all the same: they save nothing there, and let the rung be tested
without a GPU.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from stepladder.plan import SettledPlan
from stepladder.rungs.precision.precision import autocast_context
from stepladder.seam.storages import storage_id, version_of

AHEAD = 2  # copies in flight before compute waits for the oldest
SMALLEST = 2**20  # bytes: a smaller copy costs more than the memory is worth
RESHAPES = ("ToCopyBackward0", "TBackward0", "TransposeBackward0", "ViewBackward0")


class Offload(saved_tensors_hooks):
    """A context in which what autograd saves on `device` is kept in host memory.

    Used around each forward pass; backward may run outside.
    """

    def __init__(
        self, device: torch.device, parameters: Iterable[Tensor], smallest_bytes: int = SMALLEST
    ) -> None:
        super().__init__(self._send, lambda sent: sent() if isinstance(sent, View) else sent)
        self.device, self.smallest_bytes = device, smallest_bytes
        self.sent_bytes = 0
        self._stays = {storage_id(parameter.untyped_storage()) for parameter in parameters}
        self._host_copies: weakref.WeakValueDictionary[tuple[int, int], HostCopy]
        self._host_copies = weakref.WeakValueDictionary()
        self._copy_stream = CopyStream(device) if device.type == "cuda" else None
        self._last: HostCopy | None = None

    def __enter__(self) -> None:
        self._last = None  # each forward pass has its own order of copies
        super().__enter__()

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        if self._copy_stream is not None:
            self._copy_stream.settle(0)
        self._last = None

    def _send(self, tensor: Tensor) -> Any:
        if not self._leaves(tensor):
            return tensor.detach()  # detached: a graph that holds its own result is never freed
        storage = tensor.untyped_storage()
        address = (storage_id(storage), version_of(tensor))  # written to since: another copy
        copied = self._host_copies.get(address)
        if copied is None or copied.source() is not storage:
            copied = HostCopy(storage, self._last, self._copy_stream)
            self._host_copies[address] = copied
            self.sent_bytes += storage.nbytes()
        self._last = copied
        return View(copied, tensor)

    def _leaves(self, tensor: Tensor) -> bool:
        if type(tensor) is not Tensor or tensor.layout != torch.strided:
            return False  # subclasses have more state than a storage
        if tensor.device.type != self.device.type or cast_of_parameter(tensor):
            return False
        storage = tensor.untyped_storage()
        return storage.nbytes() >= self.smallest_bytes and storage_id(storage) not in self._stays


class HostCopy:
    """One storage's bytes in host memory, and their copy back to the device."""

    def __init__(
        self, storage: torch.UntypedStorage, before: HostCopy | None, copy_stream: CopyStream | None
    ) -> None:
        self.source = weakref.ref(storage)
        self.before = weakref.ref(before) if before is not None else None  # backward needs it next
        self.copy_stream, self.device = copy_stream, storage.device
        there = bytes_of(storage)
        self.host = torch.empty(there.shape, dtype=torch.uint8, pin_memory=copy_stream is not None)
        self.back: Tensor | None = None
        if copy_stream is None:
            self.host.copy_(there)
        else:
            copy_stream.send(there, self.host)

    def fetch(self) -> None:
        if self.back is None:
            self.back = torch.empty(self.host.shape, dtype=torch.uint8, device=self.device)
            if self.copy_stream is None:
                self.back.copy_(self.host)
            else:
                self.arrived = self.copy_stream.bring(self.host, self.back)

    def open(self) -> Tensor:
        """The bytes on the device; also starts the copy that backward needs next."""
        self.fetch()
        if self.copy_stream is not None:
            torch.cuda.current_stream(self.device).wait_event(self.arrived)
            before = self.before() if self.before is not None else None
            if before is not None:
                before.fetch()
        assert self.back is not None
        return self.back


class View:
    """The offset, shape and strides of a saved tensor in its storage's copy."""

    def __init__(self, copied: HostCopy, tensor: Tensor) -> None:
        self.copied, self.dtype = copied, tensor.dtype
        self.place = (tensor.storage_offset(), tensor.shape, tensor.stride())

    def __call__(self) -> Tensor:
        storage = self.copied.open().untyped_storage()
        return torch.empty(0, dtype=self.dtype, device=storage.device).set_(storage, *self.place)


class CopyStream:
    """The side stream of copies between device and host."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.stream = device, torch.cuda.Stream(device)
        self.in_flight: deque[tuple[Tensor, torch.cuda.Event]] = deque()

    def send(self, there: Tensor, host: Tensor) -> None:
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream):
            host.copy_(there, non_blocking=True)
        self.in_flight.append((there, self.stream.record_event()))
        self.settle(AHEAD)

    def settle(self, num_in_flight: int) -> None:
        """Make compute wait until at most so many copies are in flight, and free the sources."""
        while len(self.in_flight) > num_in_flight:
            _, landed = self.in_flight.popleft()
            torch.cuda.current_stream(self.device).wait_event(landed)

    def bring(self, host: Tensor, back: Tensor) -> torch.cuda.Event:
        self.stream.wait_stream(torch.cuda.current_stream(self.device))  # `back` may be in use
        with torch.cuda.stream(self.stream):
            back.copy_(host, non_blocking=True)
        back.record_stream(self.stream)  # the graph may be freed while the copy is in flight
        return self.stream.record_event()


def offload_activations(
    device: torch.device, parameters: Iterable[Tensor], smallest_bytes: int = SMALLEST
) -> Offload:
    """The context of forward passes whose activations are kept in host memory."""
    return Offload(device, parameters, smallest_bytes)


def bytes_of(storage: torch.UntypedStorage) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def cast_of_parameter(tensor: Tensor) -> bool:
    """Whether a tensor is a cast or view of a parameter, which stays in memory anyway."""
    node = tensor.grad_fn
    while node is not None and node.name() in RESHAPES:
        node = node.next_functions[0][0]
    return node is not None and type(node).__name__ == "AccumulateGrad"


def around_forward(
    module: nn.Module, settled: SettledPlan, device: torch.device
) -> Callable[[], AbstractContextManager[Any]]:
    """The context of a forward pass: autocast, and offloading of activations."""
    work = partial(autocast_context, settled.plan.precision, device)
    if not settled.offloads_activations:
        return work
    offload = offload_activations(device, module.parameters())

    @contextmanager
    def offloaded() -> Iterator[None]:
        with work(), offload:
            yield

    return offloaded
