"""Watching a pass: every operation with what it read and made, what autograd kept, what stood.

The storage is the unit, so views cost nothing; parameters, buffers and copies of parameters in
another type belong to the model and are not counted. On fake tensors nothing is computed.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from stepladder.seam.dispatch import DispatchMode, writes_in_place
from stepladder.seam.operators import Operators
from stepladder.seam.pytree import tree_leaves
from stepladder.seam.storages import storage_id
from stepladder.workload import Attention

from .matmul_counter import CASTS, CONVOLUTIONS, PRODUCTS, looks_causal
from .memory_rates import pace_of
from .selective_checkpoint import is_dear

aten = torch.ops.aten
# Handing out memory or renaming it launches no kernel.
SILENT = Operators(
    (
        *("aten.empty", "aten.empty_like", "aten.empty_strided", "aten.new_empty"),
        *("aten.detach", "aten._unsafe_view"),
    )
)
GROUPED = Operators(("aten._grouped_mm",))


@dataclass(frozen=True, slots=True)
class Held:
    """What a set of storages holds, by the type of its elements."""

    narrow: float = 0.0  # elements of two bytes
    single: float = 0.0  # elements of float32
    other_bytes: float = 0.0

    @property
    def num_bytes(self) -> float:
        return 2 * self.narrow + 4 * self.single + self.other_bytes

    def __add__(self, other: Held) -> Held:
        wide = self.single + other.single
        return Held(self.narrow + other.narrow, wide, self.other_bytes + other.other_bytes)

    def times(self, factor: float) -> Held:
        return Held(self.narrow * factor, self.single * factor, self.other_bytes * factor)


@dataclass(frozen=True, slots=True)
class Made:
    """One storage, kept alive by nobody here."""

    key: int  # its number in the order of birth: addresses return
    held: Held


@dataclass(slots=True)
class Operation:
    """One call to the dispatcher that computes something."""

    where: str  # the innermost module
    reads: tuple[int, ...]  # keys of storages
    writes: tuple[int, ...]
    moved: Held  # elements read and written, by type
    pace: str = ""  # "rough", or the name of a kernel with a pace of its own
    lanes: int = 0  # channels of such a kernel
    product: tuple[int, int, int] | None = None  # rows, inner, columns
    channels: int = 0  # of a convolution's window
    experts: int = 1  # matrices among which the product's rows are dealt
    wanted: int = 2  # gradients that the product's operands want
    is_cast: bool = False
    dear: bool = False  # its result is what selective recomputation keeps


@dataclass(slots=True)
class Part:
    """What was seen while one part of the model ran."""

    operations: list[Operation] = field(default_factory=list)
    attention: list[Attention] = field(default_factory=list)
    saved: dict[int, Held] = field(default_factory=dict)
    inputs: dict[int, Held] = field(default_factory=dict)
    made: dict[int, Held] = field(default_factory=dict)
    casts: int = 0  # of parameters, by autocast


FIRST = "the first operation"  # is attempted before any has a name


class Watch(DispatchMode):
    """Writes down operations and storages by part; `inside` names the running modules."""

    def __init__(self, owned: Iterable[Tensor], inside: list[str]) -> None:
        super().__init__()
        self.inside, self.parts = inside, {"": Part()}
        self.part = self.parts[""]
        self.keys: dict[int, Made | None] = {}  # by address; None: the model's own
        self.born = 0
        self.attending = self.paused = False
        self.attempt = FIRST, ""
        self.watches: list[Any] = []
        self.peak, self.now = Held(), Held()
        self.peak_when_kept = Held()  # recomputation stops when it has the last that was kept
        for tensor in owned:
            self.keys[address(tensor)] = None
        self.owned = list(owned)  # alive, so that no address of theirs returns

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.attempt = str(op), self.inside[-1]
        result = op(*args, **(kwargs or {}))
        read, out = tensors_in((args, kwargs)), tensors_in(result)
        packet = op.overloadpacket
        if packet in CASTS and read and self.keys.get(address(read[0]), 1) is None:
            self.keys[address(out[0])] = None  # autocast keeps it for later, even from a pause
            self.owned.append(out[0].detach())
            self.part.casts += 1
            return result
        if self.paused:
            return result
        fresh = [t for t in out if address(t) not in self.keys]
        for tensor in out:
            self.note(tensor)
        if packet not in SILENT and (fresh or writes_in_place(op)):
            done = self.operation(packet, args, read, out)
            done.dear = is_dear(op, args, kwargs or {}) or packet is aten.convolution_backward
            self.part.operations.append(done)
        return result

    def operation(self, packet: Any, args: Any, read: list[Tensor], out: list[Tensor]) -> Operation:
        reads, writes = self.keys_of(read), self.keys_of(out)
        # A table is read where it is looked up, row by row of the result.
        touched = (*out, *out) if packet is aten.embedding else (*read, *out)
        moved = total(map(counted, touched))
        done = Operation(self.inside[-1], reads, writes, moved, *pace_of(packet, read, out))
        done.is_cast = packet in CASTS
        if self.attending:
            return done
        if packet in PRODUCTS:
            first, second = (args[index] for index in PRODUCTS[packet])
            rows = first.numel() // max(first.shape[-1], 1)
            done.product = rows, first.shape[-1], second.shape[-1]
            done.wanted = first.requires_grad + second.requires_grad
            if packet in GROUPED and second.dim() == 3:
                done.experts = second.shape[0]
        elif packet in CONVOLUTIONS:
            weight, image = args[1], args[0] if args[6] else out[0]
            places = image.shape[0] * image[0, 0].numel()
            done.product = places, weight[0].numel(), weight.shape[0]
            done.channels = weight.shape[1]
            done.wanted = args[0].requires_grad + weight.requires_grad
        return done

    def note(self, tensor: Tensor) -> Made | None:
        """The storage of a tensor, numbered at first sight."""
        storage = tensor.untyped_storage()
        where = storage_id(storage)
        if where not in self.keys:
            self.born += 1
            made = Made(self.born, held_by(tensor))
            self.keys[where] = made
            self.part.made[made.key] = made.held
            self.grow(made.held)
            end = partial(self.bury, where, made)
            self.watches.append(weakref.ref(storage, end))
        return self.keys[where]

    def bury(self, where: int, made: Made, _: Any) -> None:
        if self.keys.get(where) is made:
            del self.keys[where]
            self.now = self.now + made.held.times(-1)

    def grow(self, held: Held) -> None:
        self.now = self.now + held
        if self.now.num_bytes > self.peak.num_bytes:
            self.peak = self.now

    def keys_of(self, tensors: list[Tensor]) -> tuple[int, ...]:
        found = (self.keys.get(address(tensor)) for tensor in tensors)
        return tuple(made.key for made in found if made is not None)

    def keep(self, tensor: Tensor) -> Tensor:
        made = None if self.paused else self.note(tensor)
        self.peak_when_kept = self.peak
        if made is not None and not any(made.key in part.saved for part in self.parts.values()):
            self.part.saved[made.key] = made.held
        return tensor

    def enter(self, name: str, inputs: Any) -> None:
        self.part = self.parts.setdefault(name, Part())
        for tensor in tensors_in(inputs):
            made = self.note(tensor)
            if made is not None:
                self.part.inputs[made.key] = made.held

    @contextmanager
    def watching(self) -> Iterator[None]:
        with saved_tensors_hooks(self.keep, lambda kept: kept), Attends(self), self:
            yield


class Attends(TorchFunctionMode):
    """Notes each fused attention, whatever kernels serve it."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.watch = watch

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not F.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        if not self.watch.paused:
            self.watch.part.attention.append(attention_of(*args, **(kwargs or {})))
        self.watch.attending = True
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self.watch.attending = False


def attention_of(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **_: Any,
) -> Attention:
    square = query.shape[-2], key.shape[-2]
    causal = is_causal or (attn_mask is not None and looks_causal(attn_mask, square))
    # Where queries and keys differ in number, the square of as many scores.
    length = square[0] if square[0] == square[1] else round((square[0] * square[1]) ** 0.5)
    return Attention(query.shape[-3], key.shape[-3], query.shape[-1], length, causal)


def held_by(tensor: Tensor) -> Held:
    size = tensor.untyped_storage().nbytes()
    if not tensor.is_floating_point() or tensor.element_size() not in (2, 4):
        return Held(other_bytes=size)
    return Held(narrow=size / 2) if tensor.element_size() == 2 else Held(single=size / 4)


def counted(tensor: Tensor) -> Held:
    """What reading or writing a tensor moves, which of a view is less than its storage."""
    count = tensor.numel()
    if not tensor.is_floating_point() or tensor.element_size() not in (2, 4):
        return Held(other_bytes=count * tensor.element_size())
    return Held(narrow=count) if tensor.element_size() == 2 else Held(single=count)


def total(held: Iterable[Held]) -> Held:
    return sum(held, Held())


def tensors_in(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def address(tensor: Tensor) -> int:
    return storage_id(tensor.untyped_storage())
