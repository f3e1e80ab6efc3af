"""The operations of a rehearsed step, in order, as numbers: what each multiplies, reads and writes.

Storages are numbered as they appear, so that it is known who waits for whom. Views and allocations
start no kernel and are kept only as work of the host.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stepladder.model.tracing.matmul_shapes import matmul_of
from stepladder.model.tracing.memory_rates import memory_rate
from stepladder.rehearse.gpu_recurrent import Recurrence
from stepladder.rehearse.recorder import BACKWARD, COLLECTIVES, FORWARD, UPDATE, Recorder
from stepladder.seam.dispatch import DispatchMode, operator_name, wraps_tensors, writes_in_place
from stepladder.seam.storages import plain_tensors, storage_id

from .attention import AttentionShape, DropoutSeen, attention_of

PRODUCT, ATTENTION, CONVOLUTION, MEMORY = "product", "attention", "convolution", "memory"
RECURRENT = "recurrent"  # cells over all steps of a sequence, in one call
COLLECTIVE, COPYING, ASKING = "collective", "copying", "asking"  # the last: the host's alone

# An answer to a question of the host's; allocations; torch's own marks.
NOTHING = ("device", "_record_function_enter_new", "_record_function_exit", "wait_tensor", "div_0")
ALLOCATING = (
    "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "detach",
    "_unsafe_view", "lift_fresh", "alias", "set_", "resize_",
)  # fmt: skip
DRAWING = ("bernoulli_",)  # of dropout's mask, which a GPU draws in the kernel that applies it
MASK_BYTES = 1  # of an element of that mask
ALIGNED = 8  # elements: rows that are a multiple of these start where 16 bytes do
FLASH = "scaled_dot_product"
GATES = 4  # of an LSTM's cell


class Piece(NamedTuple):
    """What an operation reads or writes of one storage."""

    storage: int
    elements: int
    size: int  # bytes of an element

    @property
    def num_bytes(self) -> int:
        return self.elements * self.size


class Shape(NamedTuple):
    """A product's: so many of (rows, inner) by (inner, columns)."""

    rows: int
    inner: int
    columns: int
    copies: int = 1
    channels: int = 0  # of a convolution's window
    groups: int = 1
    channels_last: bool = False
    aligned: int = ALIGNED  # elements, of which the rows of every operand are a multiple


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation, without its tensors."""

    name: str
    kind: str
    phase: str
    compute: str = ""  # the type that it computes in
    reads: tuple[Piece, ...] = ()
    writes: tuple[Piece, ...] = ()
    products: tuple[Shape, ...] = ()
    attention: AttentionShape | None = None
    backward: bool = False
    rate: str = ""  # of a kernel that does not stream
    lanes: int = 0  # of a kernel with a rate of its own; of cells, steps one after another
    tensors: int = 1  # that one call handles: of an update, or of a list
    again: bool = False  # of the forward pass, computed again in backward

    @property
    def num_bytes(self) -> int:
        return sum(piece.num_bytes for piece in (*self.reads, *self.writes))


@dataclass(eq=False)
class OperationLog(DispatchMode):
    """Writes down every operation; phases are those of the recorder of memory beside it."""

    among_compiled = False

    recorder: Recorder
    operations: list[Operation] = field(default_factory=list)
    keys: dict[int, int] = field(default_factory=dict)
    masks: set[int] = field(default_factory=set)
    born: int = 0
    dropout: DropoutSeen = field(default_factory=DropoutSeen)
    watches: list[Any] = field(default_factory=list)

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(wraps_tensors(kind) for kind in types):
            return NotImplemented
        name = operator_name(op)
        result = op(*args, **(kwargs or {}))
        if name not in NOTHING:
            self.add(op, name, args, kwargs or {}, result)
        return result

    def add(self, op: Any, name: str, args: Any, kwargs: Any, result: Any) -> None:
        read, out = plain_tensors((args, kwargs)), plain_tensors(result)
        reads, phase = self.pieces(read), self.recorder.phase
        # Backward itself records nothing; a forward pass that is taken again does.
        again = phase == BACKWARD and torch.is_grad_enabled()
        old = self.born
        writes = self.pieces(out)
        fresh = any(piece.storage > old for piece in writes)
        drawn = self.draws(name, writes)
        if drawn or name in ALLOCATING or not (fresh or writes_in_place(op)):
            if not drawn:
                self.operations.append(Operation(name, ASKING, phase, again=again))
            return
        told = described(op, name, args, kwargs, read, out, reads, writes, phase)
        if told.attention is not None:
            shape = self.dropout.told(told.attention, forward=phase == FORWARD)
            told = replace(told, attention=shape)
        self.operations.append(replace(told, again=again))

    def add_recurrence(self, call: Recurrence) -> None:
        """A library's kernel for recurrent cells: products of all inputs, and one of each step."""
        phase, cells = self.recorder.phase, call.cells
        gates, tokens = GATES * call.hidden, call.steps * call.rows
        first = Shape(tokens, call.width, gates)
        later = [Shape(tokens, call.hidden, gates)] * (cells - 1)
        whole = (first, *later)
        if call.backward:  # of the inputs, of their weights and of those of the hidden state
            whole = (*whole, *whole, *[Shape(call.hidden, tokens, gates)] * cells)
        step = Shape(call.rows, call.hidden, gates)
        compute, reads = compute_of([call.inputs]), self.pieces([call.inputs])
        made = Operation("recurrent cells", RECURRENT, phase, compute, reads)
        again = phase == BACKWARD and not call.backward
        products, lanes = (step, *whole), cells * call.steps
        self.operations.append(
            replace(made, products=products, lanes=lanes, backward=call.backward, again=again)
        )

    def draws(self, name: str, writes: tuple[Piece, ...]) -> bool:
        """Whether this is part of a dropout that a GPU does in one kernel with what follows."""
        if name in DRAWING:
            self.masks.update(piece.storage for piece in writes)
            return True
        return name == "div_" and any(piece.storage in self.masks for piece in writes)

    def pieces(self, tensors: Iterable[Tensor]) -> tuple[Piece, ...]:
        found: dict[int, Piece] = {}
        for tensor in tensors:
            piece = self.piece(tensor)
            if piece is not None:
                known = found.get(piece.storage)
                if known is None or known.elements < piece.elements:
                    found[piece.storage] = piece
        return tuple(found.values())

    def piece(self, tensor: Tensor) -> Piece | None:
        """The part of its storage that a tensor shows; an expanded one is read once."""
        if not tensor.numel():
            return None
        storage = tensor.untyped_storage()
        where = storage_id(storage)
        if where not in self.keys:
            self.born += 1
            self.keys[where] = self.born
            self.watches.append(weakref.ref(storage, partial(self.forget, where)))
        key, size = self.keys[where], tensor.element_size()
        shown = 1
        for length, stride in zip(tensor.shape, tensor.stride()):
            shown *= length if stride or length == 1 else 1
        return Piece(key, shown, MASK_BYTES if key in self.masks else size)

    def forget(self, where: int, _: Any) -> None:
        self.keys.pop(where, None)


def described(
    op: Any, name: str, args: Any, kwargs: Any, read: list[Tensor], out: list[Tensor],
    reads: tuple[Piece, ...], writes: tuple[Piece, ...], phase: str,
) -> Operation:  # fmt: skip
    """An operation that starts a kernel."""
    plain = Operation(name, MEMORY, phase, compute_of(read or out), reads, writes)
    changed = {f: getattr(plain, f) for f in ("name", "phase", "compute", "reads", "writes")}
    if op.namespace in COLLECTIVES:
        return Operation(**changed, kind=COLLECTIVE)
    if FLASH in name:
        return Operation(
            **changed, kind=ATTENTION, attention=attention_of(name, args, kwargs),
            backward="backward" in name,
        )  # fmt: skip
    if name == "convolution_backward":
        return Operation(
            **changed, kind=CONVOLUTION, products=convolution_back(args), backward=True
        )
    shape = matmul_of(op, args, out[0]) if out else None
    if shape is not None and shape.channels:
        groups, last = args[8] if len(args) > 8 else 1, stored_channels_last(args[0])
        found = Shape(shape.rows, shape.inner, shape.columns, 1, shape.channels, groups, last)
        return Operation(**changed, kind=CONVOLUTION, products=(found,))
    if shape is not None:
        count = out[0].shape[0] if out[0].dim() == 3 and name in ("bmm", "baddbmm") else 1
        rows = max(shape.rows // count, 1)
        found = Shape(rows, shape.inner, shape.columns, count, aligned=aligned_of(read, out))
        return Operation(**changed, kind=PRODUCT, products=(found,))
    lists = max((len(a) for a in args if isinstance(a, list | tuple)), default=1)
    many = lists if "foreach" in name or "fused" in name else 1
    rate, lanes = memory_rate(op.overloadpacket, read, out) if read and out else ("", 0)
    return Operation(**changed, kind=MEMORY, rate=rate, lanes=lanes, tensors=many)


def aligned_of(read: Iterable[Tensor], out: Iterable[Tensor]) -> int:
    """The largest power of two, up to ALIGNED, that divides how far rows of matrices are apart."""
    apart = [
        stride
        for matrix in (*read, *out)
        if matrix.dim() > 1
        for length, stride in zip(matrix.shape[-2:], matrix.stride()[-2:])
        if stride > 1 and length > 1
    ]
    found = ALIGNED
    while found > 1 and any(stride % found for stride in apart):
        found //= 2
    return found


def compute_of(tensors: Iterable[Tensor]) -> str:
    """The type that a product of these tensors computes in."""
    floats = [t for t in tensors if t.is_floating_point()]
    names = {"torch.bfloat16": "bf16", "torch.float16": "fp16", "torch.float32": "fp32"}
    return names.get(str(floats[0].dtype), "") if floats else ""


def convolution_back(args: Any) -> tuple[Shape, ...]:
    """The products for the gradients that are asked for: of the images and of the weight."""
    gradient, images, weight = args[:3]
    transposed, groups, wanted = args[7], args[9], args[10]
    places = images if transposed else gradient
    rows = places.shape[0] * places[0, 0].numel()
    one = Shape(
        rows, weight[0].numel(), weight.shape[0], 1, weight.shape[1], groups,
        stored_channels_last(images),
    )  # fmt: skip
    return (one,) * (bool(wanted[0]) + bool(wanted[1]))


def stored_channels_last(images: Tensor) -> bool:
    return images.dim() == 4 and images.stride(1) == 1 and images.shape[1] > 1


def batch_copied(tensors: Iterable[Tensor], times: float) -> Operation:
    """The batch on its way to the device."""
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    return Operation("batch", COPYING, FORWARD, writes=(Piece(0, round(size * times), 1),))


def last_step(operations: list[Operation]) -> list[Operation]:
    """The operations from the end of the last update but one to the end of the last."""
    ends = [
        index + 1
        for index, (one, after) in enumerate(zip(operations, [*operations[1:], None]))
        if one.phase == UPDATE and (after is None or after.phase != UPDATE)
    ]
    if len(ends) < 2:
        return operations
    return operations[ends[-2] : ends[-1]]
