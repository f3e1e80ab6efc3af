"""The facts of a workload: the cost of one sample, part by part.

A workload is a sequence of parts: an entry, blocks (equal ones counted once), an exit. A part has
its parameters, its matmuls by shape, its attention, the memory traffic of its element-wise
operations, the activations that forward saves for backward, and the size of its output. Facts from
a shape and facts from tracing a module are the same to whoever reads them.

Units: a *sample* is one row of a batch (a sequence, an image). Counts are elements, not bytes,
because a plan decides how many bytes an element has; only `ElementsByType.other_bytes` is in bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Cut = Literal["", "columns", "inner"]  # the side of a matmul that tensor parallelism splits


@dataclass(frozen=True, slots=True)
class MatmulFacts:
    """A matmul of a (rows, inner) activation by an (inner, columns) weight."""

    rows: int  # of one sample
    inner: int
    columns: int
    cut: Cut = ""
    channels: int = 0  # of a convolution: those that one output pixel reads of one input pixel
    backward: int = (
        2  # matmuls in backward; a frozen weight or an input without gradient needs one less
    )
    experts: int = 1  # weights of this size among which the rows are dealt, one group to each
    narrows: bool = False  # its module casts operands as autocast would, which leaves groups alone

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
    """Attention of one sample: every query against the keys that its mask lets it see."""

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
class ElementsByType:
    """Elements of one sample, by the type they are stored in: saved activations or traffic."""

    work: float = 0.0  # in the compute type
    residual: float = 0.0  # between blocks: wider than `work` where autocast adds into fp32
    cast: float = 0.0  # extra copies, since autocast casts a shared input for each matmul
    single: float = 0.0  # always float32: statistics of norms and softmax
    other_bytes: float = 0.0  # masks, indices

    def num_bytes(self, work_bytes: int, residual_bytes: int) -> float:
        """Total bytes; a residual stream wider than the compute type implies autocast."""
        casts = self.cast if residual_bytes > work_bytes else 0.0
        sized = (self.work + casts) * work_bytes + self.residual * residual_bytes
        return sized + self.single * 4 + self.other_bytes

    def times(self, factor: float) -> ElementsByType:
        return ElementsByType(*(factor * getattr(self, name) for name in self.__slots__))

    def __add__(self, other: ElementsByType) -> ElementsByType:
        return ElementsByType(
            self.work + other.work,
            self.residual + other.residual,
            self.cast + other.cast,
            self.single + other.single,
            self.other_bytes + other.other_bytes,
        )


@dataclass(frozen=True, slots=True)
class SlowKernel:
    """Elements of a kernel that is limited by elements per second, not by bandwidth."""

    kind: str  # "channel" and "group" norms, "pool"
    elements: float
    lanes: int = 0  # channels that work side by side, where they bound it


@dataclass(frozen=True, slots=True)
class MemoryTraffic:
    """Elements that one sample's memory-bound operations read and write in one direction."""

    eager: ElementsByType = ElementsByType()  # one after another in memory, all of one type
    compiled: ElementsByType = (
        ElementsByType()
    )  # neighbours fused: what stays in registers is not counted
    non_streaming: ElementsByType = (
        ElementsByType()
    )  # eager: by rows, across strides, from one type to another
    slow: tuple[SlowKernel, ...] = ()  # eager: beside both


@dataclass(frozen=True, slots=True)
class Launches:
    """Kernels launched by one micro-batch in one direction; autocast adds casts."""

    eager: float = 0.0
    mixed: float = 0.0  # with autocast
    compiled: float = 0.0


@dataclass(frozen=True, slots=True)
class Part:
    """The cost of one part of a model: the entry, a block or the exit."""

    name: str
    parameters: int
    whole_parameters: int = 0  # of them, held whole by every rank of the tensor axis
    frozen_parameters: int = 0  # of them, never trained
    frozen_whole_parameters: int = 0  # of those held whole, never trained
    narrowed_parameters: int = 0  # of the frozen ones, those held in 16 bits under autocast
    narrowed_whole_parameters: int = 0  # of those held whole by every rank of the tensor axis
    packed_parameters: int = 0  # of the frozen ones, bytes that hold several each
    matrices: int = 0  # of the trained ones, those of hidden matrices, which muon orthogonalises
    whole_matrices: int = 0  # of those, held whole by every rank of the tensor axis
    matrix_rows: int = 0  # of all those matrices
    expert_biases: int = 0  # of experts that are modules, parameters that no matmul here has
    matmuls: tuple[MatmulFacts, ...] = ()
    attention: Attention | None = None
    moved: MemoryTraffic = MemoryTraffic()
    moved_back: MemoryTraffic | None = None  # in backward; None: as `CHEAP_BACKWARD` forwards
    whole: bool = False  # whatever the tensor axis cuts, each of its ranks has the whole stream
    eager: ElementsByType = (
        ElementsByType()
    )  # saved for backward when each operation runs by itself
    compiled: ElementsByType = (
        ElementsByType()
    )  # saved when compiled: operations fused, cheap ones recomputed
    selective: ElementsByType = (
        ElementsByType()
    )  # saved when only the outputs of matmuls and attention are
    scratch: ElementsByType = ElementsByType()  # peak temporaries of backward
    passing: ElementsByType = ElementsByType()  # peak temporaries of a recomputed forward
    making: ElementsByType | None = (
        None  # beside it where the largest weight gets its gradient; None: scratch
    )
    output: float = 0.0  # elements of the residual stream that flow out
    input: ElementsByType | None = None  # what flows in; None: as much, in the stream's type
    launches: Launches = Launches()
    launches_back: Launches = Launches()
    tensors: int = 0  # of parameters: each pass but the first adds to the gradient of each
    count: int = 1  # how many like it follow each other

    @property
    def expert_parameters(self) -> int:
        """Of the experts of a mixture, all of them."""
        return self.expert_biases + sum(m.weights for m in self.matmuls if m.experts > 1)

    @property
    def flops(self) -> float:
        """Of one sample's forward pass through one of them."""
        return sum(m.flops for m in self.matmuls) + (self.attention.flops if self.attention else 0)


@dataclass(frozen=True, slots=True)
class Facts:
    """What a model costs to train, part by part: parameters, FLOPs, activations."""

    name: str
    parts: tuple[Part, ...]  # entry, blocks, exit: two at least, where there are no blocks
    tokens: int = 1  # in one sample
    vocab: int = 0  # classes that the loss compares; with many, the logits are an owner
    tied_parameters: int = 0  # of the exit's matrix, when it is the entry's: counted once
    sample_bytes: float = 0.0  # of one sample as it is read, with what it is compared to
    uncounted: tuple[str, ...] = ()  # operators with FLOPs of their own that no matmul here holds

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
        """Parameters that one token uses: of experts, only those it is routed to."""
        several = ((p, m) for p in self.parts for m in p.matmuls if m.experts > 1)
        idle = (
            p.count * (m.experts - m.rows // self.tokens) * m.inner * m.columns for p, m in several
        )
        return self.parameters - sum(idle)

    @property
    def unit(self) -> str:
        """What its throughput is counted in: samples, such as images, where one has one token."""
        return "tokens" if self.tokens > 1 else "samples"

    @property
    def flops_per_sample(self) -> float | None:
        """Of the model's own forward and backward pass: what MFU counts, recomputation left out.

        None where an operator cannot be counted: a total without it would be too low.
        """
        if self.uncounted:
            return None
        return 3 * sum(part.flops * part.count for part in self.parts)

    @property
    def flops_per_token(self) -> float | None:
        return None if self.flops_per_sample is None else self.flops_per_sample / self.tokens
