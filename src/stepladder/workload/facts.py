"""The facts of a workload: what one sample costs, counted where rungs divide it.

A workload is a row of parts: an entry, blocks (equal ones counted once), an exit. A part knows its
parameters, its matrix products by shape, its attention, what its cheap operations move, what
forward keeps for backward and what flows out of it. Whether it came from a shape or from tracing a
module makes no difference to whoever reads it.

Units: a *sample* is one row of a batch (a sequence, an image). Counts are elements, not bytes,
because a plan decides how many bytes an element has; only `Kept.other_bytes` is in bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Cut = Literal["", "columns", "inner"]  # the side of a product that the tensor axis divides


@dataclass(frozen=True, slots=True)
class Matrix:
    """The product of a (rows, inner) activation by an (inner, columns) weight."""

    rows: int  # of one sample
    inner: int
    columns: int
    cut: Cut = ""
    channels: int = 0  # of a convolution: those that one output pixel reads of one input pixel
    backward: int = 2  # products in backward; a frozen weight or the data itself needs one less
    experts: int = 1  # weights of this size among which the rows are dealt, one group to each

    @property
    def flops(self) -> int:
        """Of one sample's forward pass; a multiply-add is two."""
        return 2 * self.rows * self.inner * self.columns

    @property
    def weights(self) -> int:
        """Elements of the weight, of all experts' where there are several."""
        return self.experts * self.inner * self.columns


@dataclass(frozen=True, slots=True)
class Attention:
    """Every query against the keys it may see, for one sample."""

    heads: int
    kv_heads: int
    head_width: int
    length: int
    causal: bool = True

    @property
    def flops(self) -> float:
        """Of one sample's forward pass, leaving out the half that a causal mask hides."""
        whole = 4.0 * self.heads * self.head_width * self.length**2
        return whole / 2 if self.causal else whole

    @property
    def scores(self) -> int:
        """Elements of the score matrix, which only plain attention writes down."""
        return self.heads * self.length**2


@dataclass(frozen=True, slots=True)
class Kept:
    """What forward keeps for backward, in elements of one sample."""

    work: float = 0.0  # in the type that is worked in
    residual: float = 0.0  # between blocks: wider than `work` where autocast adds into fp32
    cast: float = 0.0  # autocast casts a shared input anew for each product: the further copies
    single: float = 0.0  # always float32: statistics of norms and softmax
    other_bytes: float = 0.0  # masks, indices

    def num_bytes(self, work_bytes: int, residual_bytes: int) -> float:
        """In these types; a stream wider than the work says that autocast is at work."""
        casts = self.cast if residual_bytes > work_bytes else 0.0
        sized = (self.work + casts) * work_bytes + self.residual * residual_bytes
        return sized + self.single * 4 + self.other_bytes

    def times(self, factor: float) -> Kept:
        return Kept(*(factor * getattr(self, name) for name in self.__slots__))

    def __add__(self, other: Kept) -> Kept:
        return Kept(
            self.work + other.work,
            self.residual + other.residual,
            self.cast + other.cast,
            self.single + other.single,
            self.other_bytes + other.other_bytes,
        )


@dataclass(frozen=True, slots=True)
class Slow:
    """Elements of kernels whose pace is their own, whatever an element's bytes."""

    kind: str  # "channel" and "group" norms, "pool"
    elements: float
    lanes: int = 0  # channels that work side by side, where they bound it


@dataclass(frozen=True, slots=True)
class Moved:
    """Elements that one sample's cheap operations read and write in one direction."""

    eager: Kept = Kept()  # one after another in memory, all of one type
    compiled: Kept = Kept()  # neighbours fused: what stays in registers is not counted
    rough: Kept = Kept()  # eager: by rows, across strides, from one type to another
    slow: tuple[Slow, ...] = ()  # eager: beside both


@dataclass(frozen=True, slots=True)
class Launches:
    """Kernels that one pass asks for in one direction; autocast adds those that cast."""

    eager: float = 0.0
    mixed: float = 0.0  # with autocast
    compiled: float = 0.0


@dataclass(frozen=True, slots=True)
class Part:
    """What one kind of part of a model costs."""

    name: str
    parameters: int
    whole_parameters: int = 0  # of them, held whole by every rank of the tensor axis
    frozen_parameters: int = 0  # of them, never trained
    frozen_whole_parameters: int = 0  # of those held whole, never trained
    matrices: tuple[Matrix, ...] = ()
    attention: Attention | None = None
    moved: Moved = Moved()
    moved_back: Moved | None = None  # in backward; None: as `CHEAP_BACKWARD` forwards
    whole: bool = False  # whatever the tensor axis cuts, each of its ranks has the whole stream
    eager: Kept = Kept()  # kept when each operation runs by itself
    compiled: Kept = Kept()  # kept when neighbours are fused and cheap ones run again
    selective: Kept = Kept()  # kept when only products and attention are
    scratch: Kept = Kept()  # alive at once in backward beside what forward kept
    passing: Kept = Kept()  # alive at once when forward runs again, beside what it keeps
    making: Kept | None = (
        None  # beside it where the largest weight gets its gradient; None: scratch
    )
    output: float = 0.0  # elements of the residual stream that flow out
    input: Kept | None = None  # what flows in; None: as much, in the stream's type
    launches: Launches = Launches()
    launches_back: Launches = Launches()
    tensors: int = 0  # of parameters: each pass but the first adds to the gradient of each
    count: int = 1  # how many like it follow each other

    @property
    def flops(self) -> float:
        """Of one sample's forward pass through one of them."""
        return sum(m.flops for m in self.matrices) + (self.attention.flops if self.attention else 0)


@dataclass(frozen=True, slots=True)
class Facts:
    """What a model costs to train, part by part: parameters, FLOPs, activations."""

    name: str
    parts: tuple[Part, ...]  # entry, blocks, exit: two at least, where there are no blocks
    tokens: int = 1  # in one sample
    vocab: int = 0  # classes that the loss compares; with many, the logits are an owner
    tied_parameters: int = 0  # of the exit's matrix, when it is the entry's: counted once
    sample_bytes: float = 0.0  # of one sample as it is read, with what it is compared to

    @property
    def entry(self) -> Part:
        return self.parts[0]

    @property
    def blocks(self) -> tuple[Part, ...]:
        """Every block in order, equal ones repeated."""
        return tuple(part for part in self.parts[1:-1] for _ in range(part.count))

    @property
    def exit(self) -> Part:
        return self.parts[-1]

    @property
    def num_blocks(self) -> int:
        return sum(part.count for part in self.parts[1:-1])

    @property
    def parameters(self) -> int:
        every = sum(part.parameters * part.count for part in self.parts)
        return every - self.tied_parameters

    @property
    def active_parameters(self) -> int:
        """Those that one token meets: of experts, the ones it goes to."""
        several = ((p, m) for p in self.parts for m in p.matrices if m.experts > 1)
        idle = (
            p.count * (m.experts - m.rows // self.tokens) * m.inner * m.columns for p, m in several
        )
        return self.parameters - sum(idle)

    @property
    def flops_per_sample(self) -> float:
        """Of the model's own forward and backward pass: what MFU counts, recomputation left out."""
        return 3 * sum(part.flops * part.count for part in self.parts)

    @property
    def flops_per_token(self) -> float:
        return self.flops_per_sample / self.tokens
