"""Compute time of one micro-batch through one part, by cause: matmuls, attention, memory traffic.

Backward does a product's work twice (for its input and for its weight) and attention's 2.5 times;
each of the three products of a weight has the same FLOPs and touches the same elements. What is
recomputed is forward work done once more, less the last product: recomputation stops when backward
has all it asked for, and it never asks for the block's own output.

The experts of a layer are one product by groups: rows sorted by expert, one kernel, as torch's
`grouped_mm` is. One by one they would be as many launches, and their sizes would have to be known
to the host. Each expert's weight is read for the few rows that go to it, and its last tile of rows
is half empty on average (`TILE`). Such a product is no linear: it stays in the work type under fp8,
and autocast leaves it in fp32.
"""

from __future__ import annotations

from dataclasses import dataclass

from stepladder.planner.memory.recompute_depths import RecomputeShares
from stepladder.planner.training_software import OURS, Software
from stepladder.workload import Attention, ElementsByType, MatmulFacts, MemoryTraffic, Part

from .device_speed import Speed
from .host_time import launches_of

ATTENTION_BACKWARD = 2.5  # scores again, then gradients of query, key, value and weights
CHEAP_BACKWARD = 2.0  # element-wise work reads the gradient and the input for each it wrote
CHANNEL = "channel"  # norms over the pixels of each channel
NARROWING_BYTES = 6.0  # moved for each number of an expert's weight: read in fp32, written in bf16
TILE = 128  # rows that a matrix kernel works on at once
FULL_HEAD = 128  # the width of heads that the device table's rates of attention are of
SINGLE = 4  # bytes of float32, which autocast leaves the stream between blocks in


@dataclass(frozen=True, slots=True)
class Work:
    """Seconds by cause."""

    matrix: float = 0.0
    attention: float = 0.0
    memory_bound: float = 0.0

    @property
    def seconds(self) -> float:
        return self.matrix + self.attention + self.memory_bound

    def __add__(self, other: Work) -> Work:
        return Work(
            self.matrix + other.matrix,
            self.attention + other.attention,
            self.memory_bound + other.memory_bound,
        )

    def times(self, factor: float) -> Work:
        return Work(self.matrix * factor, self.attention * factor, self.memory_bound * factor)


@dataclass(frozen=True, slots=True)
class Share:
    """Which part of a global batch one rank computes at once, and how."""

    samples: int  # of one micro-batch
    tensor: int = 1
    context: int = 1
    experts: int = 1  # ranks among which a mixture's experts are divided
    compiled: bool = False
    autocast: bool = False  # the stream between blocks is fp32, and matmuls cast what they read
    flash: bool = True
    channels_last: bool = False  # images are stored with their channels innermost
    weight_casts: float = 1.0  # share of micro-batches that cast weights to fp8
    software: Software = OURS


@dataclass(frozen=True, slots=True)
class PartWork:
    """Forward and backward of one micro-batch, and the forward work that backward repeats."""

    forward: Work
    backward: Work
    recomputed: Work

    @property
    def seconds(self) -> float:
        return self.forward.seconds + self.backward.seconds + self.recomputed.seconds


def part_work(part: Part, share: Share, speed: Speed, *, wide: bool = False) -> tuple[Work, Work]:
    """Forward and backward work of one part; `wide` matmuls stay in the work type."""
    each = [matmul_seconds(m, share, speed, wide) for m in part.matmuls]
    products, back = sum(each), sum(s * m.backward for s, m in zip(each, part.matmuls))
    cast = [] if wide or not speed.casts else [m for m in part.matmuls if is_cast(m)]
    casts = sum(cast_seconds(m, share, speed) for m in cast)
    casts_back = sum(m.backward * cast_seconds(m, share, speed) for m in cast)
    cheap, cheap_back = memory_bound_seconds(part, share, speed)
    attend, scores = attention_seconds(part.attention, share, speed)
    forward = Work(products, attend, cheap + casts + scores)
    more = 0.0 if share.flash or not share.software.recomputes_scores else 1.0
    attend_back, scores_back = ATTENTION_BACKWARD + more, CHEAP_BACKWARD + more
    backward = Work(back, attend_back * attend, cheap_back + scores_back * scores + casts_back)
    return forward, backward


def matmul_seconds(matrix: MatmulFacts, share: Share, speed: Speed, wide: bool) -> float:
    rows, inner, columns = local_matmul(matrix, share)
    flops = 2 * rows * inner * columns
    if matrix.channels:
        elements = rows * (matrix.channels + columns) + inner * columns
        return speed.convolve(flops, elements, matrix.channels, channels_last=share.channels_last)
    if matrix.experts > 1:
        experts = matrix.experts / share.experts
        rows += experts * TILE / 2
        elements = rows * (inner + columns) + experts * inner * columns
        single = share.autocast and not matrix.narrows
        product = speed.grouped(2 * rows * inner * columns, elements, single=single)
        casts = (
            NARROWING_BYTES * experts * inner * columns if share.autocast and not single else 0.0
        )
        return product + casts / speed.bandwidth
    elements = rows * inner + rows * columns + inner * columns
    return speed.matmul(flops, elements, wide=wide)


def local_matmul(matrix: MatmulFacts, share: Share) -> tuple[float, float, float]:
    rows = matrix.rows * share.samples / share.context
    inner = matrix.inner / (share.tensor if matrix.cut == "inner" else 1)
    columns = matrix.columns / (share.tensor if matrix.cut == "columns" else 1)
    return rows, inner, columns


def is_cast(matrix: MatmulFacts) -> bool:
    """Whether fp8 takes it: not products by groups, nor those of adapters, too narrow to gain."""
    return matrix.experts == 1 and min(matrix.inner, matrix.columns) >= TILE


def cast_seconds(matrix: MatmulFacts, share: Share, speed: Speed) -> float:
    """A third of casting input, output gradient and weight for the three matmuls of a step."""
    rows, inner, columns = local_matmul(matrix, share)
    elements = rows * inner + rows * columns + 2 * inner * columns * share.weight_casts
    return share.software.cast_bytes * elements / 3 / speed.bandwidth


def memory_bound_seconds(part: Part, share: Share, speed: Speed) -> tuple[float, float]:
    """Seconds of memory-bound kernels, forward and backward, with their start and end."""
    split = share.samples / (1 if part.whole else share.tensor) / share.context
    starts, starts_back = (num_kernels(part, share, back) for back in (False, True))
    if share.compiled or part.moved_back is None:
        one = traffic_seconds(part.moved, share, speed) * split
        ahead, back = one, CHEAP_BACKWARD * one
    else:
        ahead = traffic_seconds(part.moved, share, speed) * split
        back = traffic_seconds(part.moved_back, share, speed) * split
    return ahead + starts * speed.kernel_seconds, back + starts_back * speed.kernel_seconds


def traffic_seconds(moved: MemoryTraffic, share: Share, speed: Speed) -> float:
    """Seconds of one sample's memory traffic in one direction."""
    residual = SINGLE if share.autocast else speed.work_bytes
    if share.compiled:
        stream = moved.compiled.num_bytes(speed.work_bytes, residual) / speed.bandwidth
        return stream if share.channels_last else stream + norm_seconds(moved, share, speed)
    stream = moved.eager.num_bytes(speed.work_bytes, residual) / speed.bandwidth
    others = sum(speed.slow(s.kind, s.elements, s.lanes) for s in moved.slow if s.kind != CHANNEL)
    rough = non_streaming_seconds(moved.non_streaming, speed, residual)
    return stream + rough + others + norm_seconds(moved, share, speed)


def norm_seconds(moved: MemoryTraffic, share: Share, speed: Speed) -> float:
    """Seconds of norms over a channel's pixels, which stream where channels lie innermost."""
    norms = [s for s in moved.slow if s.kind == CHANNEL]
    if share.channels_last:
        return sum(s.elements for s in norms) * speed.work_bytes / speed.bandwidth
    return sum(speed.slow(s.kind, s.elements, s.lanes) for s in norms)


def non_streaming_seconds(non_streaming: ElementsByType, speed: Speed, residual: int) -> float:
    """Seconds of kernels that do not stream: each element at the rate of its type."""
    narrow = non_streaming.work + (non_streaming.cast if residual > speed.work_bytes else 0.0)
    wide = SINGLE * non_streaming.single + non_streaming.other_bytes
    by_type = ((narrow, speed.work_bytes), (non_streaming.residual, residual))
    return wide / speed.non_streaming[SINGLE] + sum(
        n * size / speed.non_streaming[size] for n, size in by_type
    )


def num_kernels(part: Part, share: Share, back: bool) -> float:
    launches = part.launches_back if back else part.launches
    return launches_of(launches, share.autocast, share.compiled)


def attention_seconds(
    attention: Attention | None, share: Share, speed: Speed
) -> tuple[float, float]:
    """Seconds of the attention itself, and of moving the scores where they are materialised."""
    if attention is None:
        return 0.0, 0.0
    split = share.samples / share.tensor / share.context
    if not share.flash:
        whole = 4.0 * attention.scores * attention.head_width * split  # no half is left out
        return (
            whole / speed.wide,
            attention.scores * split * share.software.score_bytes / speed.bandwidth,
        )
    # The last slice of a causal sequence looks at all the others: (2c - 1)/c of the mean.
    late = attention.causal and not share.software.balances
    uneven = (2 * share.context - 1) / share.context if late else 1.0
    heads = 2 * attention.heads + 2 * attention.kv_heads
    elements = heads * attention.head_width * attention.length * split
    flops = attention.flops * uneven * split / width_share(attention.head_width, speed)
    return flops / speed.attention + elements * speed.work_bytes / speed.bandwidth, 0.0


def width_share(head_width: int, speed: Speed) -> float:
    """The rate of attention with heads of that width over that of 128 wide ones.

    Each score needs an exponential whatever the width, and narrow heads do fewer products for it.
    """
    beside = speed.exponentials
    return min((1 + beside) / (1 + beside * FULL_HEAD / max(head_width, 1)), 1.0)


def block_work(part: Part, share: Share, speed: Speed, depths: RecomputeShares) -> PartWork:
    """One block, with what recomputation adds to its backward on average over all blocks."""
    forward, backward = part_work(part, share, speed)
    last = last_matmul_share(part) if share.software.stops_early else 0.0
    whole = Work(forward.matrix * (1 - last), forward.attention, forward.memory_bound)
    cheap = Work(forward.matrix * share.software.recomputed_matmuls, 0.0, forward.memory_bound)
    return PartWork(forward, backward, whole.times(depths.whole) + cheap.times(depths.cheap))


def last_matmul_share(part: Part) -> float:
    """The last matmul's share of a block's matmuls."""
    return part.matmuls[-1].flops / sum(m.flops for m in part.matmuls) if part.matmuls else 0.0
