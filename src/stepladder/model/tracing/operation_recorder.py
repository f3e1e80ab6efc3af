"""Recording a pass: every operation with the storages it read and wrote, and what autograd saved.

Storages are counted, so views cost nothing; parameters, buffers and casts of parameters belong to
the model and are not counted. With fake tensors nothing is computed.
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

from .matmul_counter import CASTS, looks_causal
from .matmul_shapes import RecordedMatmul, matmul_of
from .memory_rates import memory_rate
from .operator_flops import COUNTED, is_uncounted, name_of
from .selective_checkpoint import worth_saving

aten = torch.ops.aten
# Allocations and views launch no kernel.
NO_KERNEL = Operators(
    (
        *("aten.empty", "aten.empty_like", "aten.empty_strided", "aten.new_empty"),
        *("aten.detach", "aten._unsafe_view"),
    )
)


@dataclass(frozen=True, slots=True)
class ElementCounts:
    """The number of elements of some storages, by type."""

    narrow: float = 0.0  # elements of two bytes
    single: float = 0.0  # elements of float32
    other_bytes: float = 0.0

    @property
    def num_bytes(self) -> float:
        return 2 * self.narrow + 4 * self.single + self.other_bytes

    def __add__(self, other: ElementCounts) -> ElementCounts:
        wide = self.single + other.single
        return ElementCounts(self.narrow + other.narrow, wide, self.other_bytes + other.other_bytes)

    def times(self, factor: float) -> ElementCounts:
        return ElementCounts(self.narrow * factor, self.single * factor, self.other_bytes * factor)


@dataclass(frozen=True, slots=True)
class StorageRecord:
    """One storage, without a reference to it."""

    key: int  # numbered in order of creation, because addresses are reused
    counts: ElementCounts


@dataclass(slots=True)
class RecordedOperation:
    """One dispatched operation that launches a kernel."""

    where: str  # the innermost module
    reads: tuple[int, ...]  # keys of storages
    writes: tuple[int, ...]
    moved: ElementCounts  # elements read and written, by type
    rate: str = ""  # "rough", or the name of a kernel with its own rate
    lanes: int = 0  # channels of such a kernel
    matmul: RecordedMatmul | None = None
    is_cast: bool = False
    worth_saving: bool = False  # by selective activation checkpointing


@dataclass(slots=True)
class RecordedPart:
    """What was recorded while one part of the model ran."""

    operations: list[RecordedOperation] = field(default_factory=list)
    attention: list[Attention] = field(default_factory=list)
    saved: dict[int, ElementCounts] = field(default_factory=dict)
    inputs: dict[int, ElementCounts] = field(default_factory=dict)
    made: dict[int, ElementCounts] = field(default_factory=dict)
    casts: int = 0  # of parameters, by autocast
    uncounted: set[str] = field(default_factory=set)  # operators whose FLOPs are no matmul's


BEFORE_FIRST = "the first operation"  # for an error before any operation was dispatched


class OperationRecorder(DispatchMode):
    """Records operations and storages by part; `inside` names the running modules."""

    def __init__(self, owned: Iterable[Tensor], inside: list[str]) -> None:
        super().__init__()
        self.inside, self.parts = inside, {"": RecordedPart()}
        self.part = self.parts[""]
        self.keys: dict[int, StorageRecord | None] = {}  # by address; None: belongs to the model
        self.born = 0
        self.attending = self.paused = False
        self.attempt = BEFORE_FIRST, ""
        self.weakrefs: list[Any] = []
        self.peak, self.now = ElementCounts(), ElementCounts()
        self.peak_when_kept = ElementCounts()  # recomputation stops at the last saved tensor
        for tensor in owned:
            self.keys[address(tensor)] = None
        self.owned = list(owned)  # kept alive, so that their addresses are not reused

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.attempt = str(op), self.inside[-1]
        result = op(*args, **(kwargs or {}))
        read, out = tensors_in((args, kwargs)), tensors_in(result)
        packet = op.overloadpacket
        if packet in CASTS and read and self.keys.get(address(read[0]), 1) is None:
            self.keys[address(out[0])] = None  # autocast caches it, even while paused
            self.owned.append(out[0].detach())
            self.part.casts += 1
            return result
        if self.paused:
            return result
        fresh = [t for t in out if address(t) not in self.keys]
        for tensor in out:
            self.record_storage(tensor)
        if packet not in NO_KERNEL and (fresh or writes_in_place(op)):
            done = self.operation(op, args, read, out)
            done.worth_saving = (
                worth_saving(op, args, kwargs or {}) or packet is aten.convolution_backward
            )
            self.part.operations.append(done)
        return result

    def operation(
        self, op: Any, args: Any, read: list[Tensor], out: list[Tensor]
    ) -> RecordedOperation:
        packet = op.overloadpacket
        reads, writes = self.keys_of(read), self.keys_of(out)
        # Of an embedding only the rows looked up are read.
        touched = (*out, *out) if packet is aten.embedding else (*read, *out)
        moved = total(map(traffic_counts, touched))
        done = RecordedOperation(
            self.inside[-1], reads, writes, moved, *memory_rate(packet, read, out)
        )
        done.is_cast = packet in CASTS
        if self.attending:
            return done
        done.matmul = matmul_of(op, args, out[0]) if out else None
        if done.matmul is None and (name_of(op) in COUNTED or is_uncounted(op)):
            self.part.uncounted.add(op.name())
        return done

    def record_storage(self, tensor: Tensor) -> StorageRecord | None:
        """The record of a tensor's storage, made when it is first seen."""
        storage = tensor.untyped_storage()
        where = storage_id(storage)
        if where not in self.keys:
            self.born += 1
            made = StorageRecord(self.born, storage_counts(tensor))
            self.keys[where] = made
            self.part.made[made.key] = made.counts
            self.add_live(made.counts)
            end = partial(self.release_storage, where, made)
            self.weakrefs.append(weakref.ref(storage, end))
        return self.keys[where]

    def release_storage(self, where: int, made: StorageRecord, _: Any) -> None:
        if self.keys.get(where) is made:
            del self.keys[where]
            self.now = self.now + made.counts.times(-1)

    def add_live(self, counts: ElementCounts) -> None:
        self.now = self.now + counts
        if self.now.num_bytes > self.peak.num_bytes:
            self.peak = self.now

    def keys_of(self, tensors: list[Tensor]) -> tuple[int, ...]:
        found = (self.keys.get(address(tensor)) for tensor in tensors)
        return tuple(made.key for made in found if made is not None)

    def record_saved(self, tensor: Tensor) -> Tensor:
        made = None if self.paused else self.record_storage(tensor)
        self.peak_when_kept = self.peak
        if made is not None and not any(made.key in part.saved for part in self.parts.values()):
            self.part.saved[made.key] = made.counts
        return tensor

    def enter(self, name: str, inputs: Any) -> None:
        self.part = self.parts.setdefault(name, RecordedPart())
        for tensor in tensors_in(inputs):
            made = self.record_storage(tensor)
            if made is not None:
                self.part.inputs[made.key] = made.counts

    @contextmanager
    def recording(self) -> Iterator[None]:
        with (
            saved_tensors_hooks(self.record_saved, lambda kept: kept),
            AttentionRecorder(self),
            self,
        ):
            yield


class AttentionRecorder(TorchFunctionMode):
    """Records each fused attention, whatever kernels implement it."""

    def __init__(self, recorder: OperationRecorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not F.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        if not self.recorder.paused:
            self.recorder.part.attention.append(attention_of(*args, **(kwargs or {})))
        self.recorder.attending = True
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self.recorder.attending = False


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
    # If queries and keys differ in number, a square with as many scores.
    length = square[0] if square[0] == square[1] else round((square[0] * square[1]) ** 0.5)
    return Attention(query.shape[-3], key.shape[-3], query.shape[-1], length, causal)


def storage_counts(tensor: Tensor) -> ElementCounts:
    size = tensor.untyped_storage().nbytes()
    if not tensor.is_floating_point() or tensor.element_size() not in (2, 4):
        return ElementCounts(other_bytes=size)
    return (
        ElementCounts(narrow=size / 2)
        if tensor.element_size() == 2
        else ElementCounts(single=size / 4)
    )


def traffic_counts(tensor: Tensor) -> ElementCounts:
    """The elements moved by reading or writing a tensor; for a view less than its storage."""
    count = tensor.numel()
    if not tensor.is_floating_point() or tensor.element_size() not in (2, 4):
        return ElementCounts(other_bytes=count * tensor.element_size())
    return (
        ElementCounts(narrow=count) if tensor.element_size() == 2 else ElementCounts(single=count)
    )


def total(counts: Iterable[ElementCounts]) -> ElementCounts:
    return sum(counts, ElementCounts())


def tensors_in(tree: Any) -> list[Tensor]:
    """All tensors, in order; torch's walk, which knows every container, takes longer."""
    if isinstance(tree, Tensor):
        return [tree]
    if type(tree) in (tuple, list, dict):
        parts = tree.values() if type(tree) is dict else tree
        return [tensor for part in parts for tensor in tensors_in(part)]
    if tree is None or isinstance(tree, (int, float, str)):
        return []
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def address(tensor: Tensor) -> int:
    return storage_id(tensor.untyped_storage())
