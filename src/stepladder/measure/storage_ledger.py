"""A ledger of tensor storages: when each was allocated and freed, and who owned it.

A dispatch mode sees every tensor an operation returns, forward and backward alike, and a weak
reference on its storage sees it die. The storage is the unit, so views cost nothing. The moment of
the peak is looked at afterwards, when it is known who outlived what: what was born while autograd
recorded and outlived the start of backward was kept for backward, whoever kept it (autograd, a
recomputation's inputs, or the results a selective one saves).

What a kernel allocates and frees inside itself is not seen.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from stepladder.seam.dispatch import DispatchMode, in_backward, wraps_tensors
from stepladder.seam.operators import Operators
from stepladder.seam.storages import plain_tensors, resize_noticed, storage_id

COLLECTIVES = ("_c10d_functional", "c10d", "fsdp")
CASTS = Operators(("aten._to_copy.default",))
FOREVER = 2**62


class StorageLife:
    """One storage's record."""

    __slots__ = ("born", "died", "num_bytes", "owner", "phase", "place", "watch", "width")

    def __init__(self, num_bytes: int, born: int, width: int) -> None:
        self.num_bytes, self.born, self.died = num_bytes, born, FOREVER
        self.width = width  # the last dimension of the tensor it was first seen in
        self.phase = ""  # autograd recorded at its birth: in "forward", or "again" in backward
        self.owner: str | None = None  # None: inferred from its lifetime
        self.place = ""  # the module at work at its birth, where somebody asked for that
        self.watch: weakref.ref[Any] | None = None


class Ledger(DispatchMode):
    """Records the lifetime of every storage on one kind of device while it is active."""

    def __init__(
        self, device: torch.device, round_to: int = 1, where: Callable[[], str] = str
    ) -> None:
        super().__init__()
        self.device, self.round_to, self.where = device, round_to, where
        self.lives: list[StorageLife] = []
        self.moment = 0  # counts births and deaths
        self.live_bytes = self.peak_bytes = self.peak_moment = 0
        self.backwards: list[int] = []  # moments at which a backward pass began
        self._alive: dict[int, StorageLife] = {}
        self._in_backward = False

    def __enter__(self) -> Ledger:
        self._resize = torch.UntypedStorage.resize_
        torch.UntypedStorage.resize_ = resize_noticed(self._resize, self.resize)  # type: ignore[method-assign]
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]
        for life in self._alive.values():
            life.watch = None  # deaths from here on are not part of the story

    def __torch_dispatch__(
        self, op: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if any(wraps_tensors(kind) for kind in types):
            return NotImplemented  # the operation comes back on the plain tensors inside
        self._notice_backward()
        read = [self.admit(tensor) for tensor in plain_tensors((args, kwargs))]
        result = op(*args, **(kwargs or {}))
        for tensor in plain_tensors(result):
            life = self.note(tensor)
            if life is not None and life.owner is None:
                life.owner = owner_by_birth(op, read)
        return result

    def note(self, tensor: Tensor) -> StorageLife | None:
        """The life of a tensor's storage, begun now if it is new; none on another device."""
        if tensor.device.type != self.device.type:
            return None
        storage = tensor.untyped_storage()
        life = self._alive.get(storage_id(storage))
        if life is None:
            life = self._begin(storage, tensor, self.moment + 1)
            life.place = self.where()
            if torch.is_grad_enabled():
                life.phase = "again" if self._in_backward else "forward"
            self._grow(life.num_bytes)
        return life

    def admit(self, tensor: Tensor) -> StorageLife | None:
        """The life of a tensor that an operation reads: if it is new, it was there all along."""
        storage = tensor.untyped_storage()
        where = storage_id(storage)
        if tensor.device.type != self.device.type or where in self._alive:
            return self._alive.get(where)
        life = self._begin(storage, tensor, 0)
        self._count_from_start(life)
        return life

    def claim(self, tensors: Iterable[Tensor], owner: str) -> None:
        """Write down who owns these tensors."""
        for tensor in plain_tensors(list(tensors)):
            life = self.admit(tensor)
            if life is not None:
                life.owner = owner

    def begin_backward(self) -> None:
        """Write down that the forward pass is over."""
        self.backwards.append(self.moment)

    def resize(self, storage: torch.UntypedStorage, bytes_before: int) -> None:
        """End a storage's life and begin another in its new size, with the same owner."""
        if storage.device.type != self.device.type:
            return
        before = self._alive.pop(storage_id(storage), None)
        if before is None:  # it was there all along; what FSDP2 gathers into was there empty
            before = self._stood(bytes_before)
        self._end(before)
        life = self._begin(storage, None, self.moment + 1)
        life.owner, life.phase, life.width = before.owner, before.phase, before.width
        life.place = before.place
        self._grow(life.num_bytes)

    def at_peak(self) -> list[StorageLife]:
        return [life for life in self.lives if life.born <= self.peak_moment < life.died]

    def kept(self, life: StorageLife) -> bool:
        """Whether forward kept it for backward, or backward computed it again."""
        over = next((moment for moment in self.backwards if moment >= life.born), FOREVER)
        return life.phase == "again" or (life.phase == "forward" and over < life.died)

    def _begin(
        self, storage: torch.UntypedStorage, tensor: Tensor | None, born: int
    ) -> StorageLife:
        num_bytes = -(-storage.nbytes() // self.round_to) * self.round_to
        width = tensor.shape[-1] if tensor is not None and tensor.ndim else 1
        life = StorageLife(num_bytes, born, width)
        where = storage_id(storage)
        life.watch = weakref.ref(storage, partial(self._bury, where))
        self._alive[where] = life
        self.lives.append(life)
        return life

    def _stood(self, num_bytes: int) -> StorageLife:
        """The life, from the start, of a storage that nothing has read yet."""
        life = StorageLife(-(-num_bytes // self.round_to) * self.round_to, 0, 1)
        self.lives.append(life)
        self._count_from_start(life)
        return life

    def _count_from_start(self, life: StorageLife) -> None:
        self.live_bytes += life.num_bytes
        self.peak_bytes += life.num_bytes

    def _bury(self, address: int, watch: Any) -> None:
        life = self._alive.get(address)
        if life is not None and life.watch is watch:
            self._end(self._alive.pop(address))

    def _end(self, life: StorageLife) -> None:
        self._grow(-life.num_bytes)
        life.died, life.watch = self.moment, None

    def _grow(self, num_bytes: int) -> None:
        self.moment += 1
        self.live_bytes += num_bytes
        if self.live_bytes > self.peak_bytes:
            self.peak_bytes, self.peak_moment = self.live_bytes, self.moment

    def _notice_backward(self) -> None:
        now = in_backward()
        if now and not self._in_backward:
            self.begin_backward()
        self._in_backward = now


def owner_by_birth(op: Any, read: list[StorageLife | None]) -> str | None:
    """Who owns what this operation made, where the operation alone tells."""
    if op.namespace in COLLECTIVES:
        return "communication"
    source = read[0] if read else None
    cast = op in CASTS and source is not None and source.owner == "parameters"
    return "working" if cast else None
