"""What an operation costs: seconds of the device, and of the host that asks for it.

The rates are the planner's (`device_speed`), measured where there is a calibration. Constants here
say how kernels of one operation differ from the kernels that those rates were measured with; each
was chosen on modules other than the one it is reported on (benchmarks/results/time_gpu.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from stepladder.hardware import Device
from stepladder.plan import Plan, Precision
from stepladder.planner.time.device_speed import ISSUE, Speed, speed_of
from stepladder.planner.time.host_time import HOST_FACTORS
from stepladder.planner.time.part_time import ATTENTION_BACKWARD
from stepladder.planner.time.part_time import width_share as processor_share
from stepladder.planner.time.step_time import HOST_LINK_BYTES_PER_SECOND
from stepladder.record import Calibration
from stepladder.rehearse.recorder import BACKWARD

from .attention import AttentionShape, attention_seconds, by_products, counted_rate
from .host_cost import LIBRARY, HostCost
from .operations import (
    ALIGNED,
    ASKING,
    ATTENTION,
    COLLECTIVE,
    CONVOLUTION,
    COPYING,
    PRODUCT,
    RECURRENT,
    Operation,
    Shape,
)

CHANNEL = "channel"
# What calibrations of two H200s agree on, for devices that nobody has calibrated: how often
# products move their operands, and the share of the datasheet's bandwidth that streaming reaches.
EDGES = {"bf16": 0.4, "fp16": 0.4, "fp32": 2.2, "tf32": 1.2}
STREAMED = 0.91
# Of a product's rate, where rows of an operand start at odd multiples of 2, 4 or 8 bytes: an older
# family of kernels takes those, which loads one, two or four numbers at a time.
MISALIGNED = 0.17  # for each element of the alignment
# Bandwidth of some kernels, as a share of what others of their kind reach.
SHARES = {"native_layer_norm_backward": 0.6, "cat": 0.75, "embedding_dense_backward": 0.3}
STEP_KERNELS = 3  # of one step of a recurrent cell: its product, the sum of its parts, its gates
ONE_OF_A_ROW = ("nll_loss_forward", "nll_loss_backward", "gather")  # read a number of each row
UPDATE_MOVES = 1.75  # reads parameter, gradient and two moments; writes all but the gradient
STREAMING_POWER = 0.5  # of the watts of large products, that work at the memory's pace takes
DEPTHWISE_MOVES = 4.0  # times that a convolution of single channels moves its images


@dataclass(frozen=True, slots=True)
class Price:
    """Seconds of one operation."""

    device: float
    host: float
    cause: str = "memory_bound"


@dataclass(frozen=True, slots=True)
class Prices:
    """A device's prices in one plan."""

    speeds: Mapping[str, Speed]  # by compute type
    single: str  # in which products of float32 numbers run: fp32, or tf32
    host: HostCost
    attention: Mapping[str, float] = field(default_factory=dict)  # FLOP/s of heads of 128, by type
    fed: float = 0.0  # FLOP/s at which kernels of 16 bits can be fed
    host_link: float = HOST_LINK_BYTES_PER_SECOND

    def of(self, one: Operation) -> Price:
        host = self.host.seconds(one)
        if one.kind == ASKING:
            return Price(0.0, host)
        speed = self.speed(one)
        if one.kind == PRODUCT:
            spent = sum(product_seconds(shape, one, speed) for shape in one.products)
            return Price(spent + speed.kernel_seconds, host, "matrix")
        if one.kind == CONVOLUTION:
            spent = sum(convolution_seconds(shape, one, speed) for shape in one.products)
            spent += bias_seconds(one, speed)
            return Price(spent + speed.kernel_seconds * len(one.products), host, "matrix")
        if one.kind == RECURRENT:
            return Price(recurrent_seconds(one, speed), host, "matrix")
        if one.kind == ATTENTION and one.attention is not None:
            spent = self.attention_seconds(one, one.attention, speed)
            return Price(spent + speed.kernel_seconds, host, "attention")
        if one.kind == COPYING:
            return Price(one.num_bytes / self.host_link, host, "data")
        if one.kind == COLLECTIVE:
            return Price(0.0, host, "communication")
        return Price(memory_seconds(one, speed), host, cause_of(one))

    def attention_seconds(self, one: Operation, shape: AttentionShape, speed: Speed) -> float:
        if one.compute == "fp32" and shape.kv_heads != shape.heads:  # no kernel shares keys there
            return by_products(shape, speed, backward=one.backward)
        if self.host.processor:
            times = ATTENTION_BACKWARD if one.backward else 1.0
            flops = 4.0 * shape.scores * shape.width / (2.0 if shape.causal else 1.0)
            rate = speed.attention * processor_share(shape.width, speed)
            return times * flops / rate + one.num_bytes / speed.bandwidth
        compute = self.single if one.compute in ("", "fp32") else one.compute
        rate, moved = self.attention[compute], float(one.num_bytes)
        return attention_seconds(
            shape, speed, rate, one.compute, backward=one.backward, moved=moved
        )

    def of_all(self, operations: Sequence[Operation]) -> list[Price]:
        """Of a step's operations beside each other."""
        each = self.with_blocks_again(operations, [self.of(one) for one in operations])
        narrow = self.speeds.get("bf16")
        if narrow is None or not self.fed:
            return each
        faster = cooler(each, narrow.matrix, self.fed)
        return [
            replace(price, device=price.device / faster)
            if one.kind in (PRODUCT, CONVOLUTION) and one.compute in ("bf16", "fp16")
            else price
            for one, price in zip(operations, each)
        ]

    def with_blocks_again(self, operations: Sequence[Operation], each: list[Price]) -> list[Price]:
        """With what checkpointing does around each block that is computed again."""
        block = self.host.block_seconds
        made, behind = [], True  # whether a block's backward came since the last one was begun
        for one, price in zip(operations, each):
            begins = one.again and one.kind != ASKING and behind
            made.append(replace(price, host=price.host + block) if begins else price)
            if begins:
                behind = False
            elif not one.again and one.phase == BACKWARD and one.kind in LIBRARY:
                behind = True
        return made

    def speed(self, one: Operation) -> Speed:
        compute = self.single if one.compute in ("", "fp32") else one.compute
        return self.speeds.get(compute) or self.speeds[self.single]


def prices_of(device: Device, plan: Plan, calibration: Calibration | None) -> Prices:
    """The prices of a device in a plan."""
    precision = plan.precision
    single = "tf32" if precision.compute == "tf32" else "fp32"
    computes = {single, "bf16", "fp16", precision.compute}
    speeds = {
        compute: speed_of(device, Precision.parse(compute), calibration)
        for compute in sorted(computes)
    }
    if calibration is None:
        speeds = {compute: uncalibrated(speeds[compute], device, compute) for compute in speeds}
    factors = {**HOST_FACTORS, **(calibration.launch_factors if calibration else {})}
    half = device.peak("bf16") or device.peak("fp16") or 0.0
    link = device.host_bytes_per_second or HOST_LINK_BYTES_PER_SECOND
    host = HostCost(speeds[single].launch_seconds, factors, device.is_cpu, bool(plan.compile))
    attention = {each: counted_rate(speeds[each], each, calibration) for each in speeds}
    return Prices(speeds, single, host, attention, 0.0 if device.is_cpu else ISSUE * half, link)


def uncalibrated(speed: Speed, device: Device, compute: str) -> Speed:
    """The device table's speeds, with what calibrations of other devices have in common."""
    listed = device.bandwidth_bytes_per_second
    if device.is_cpu or not listed:
        return speed
    edges = EDGES.get(compute, speed.edges)
    more = STREAMED * listed / speed.bandwidth
    rough = {size: rate * more for size, rate in speed.non_streaming.items()}
    return replace(speed, edges=edges, bandwidth=STREAMED * listed, non_streaming=rough)


def cause_of(one: Operation) -> str:
    return "optimizer" if one.tensors > 1 or one.phase == "optimizer step" else "memory_bound"


def product_seconds(shape: Shape, one: Operation, speed: Speed) -> float:
    rows, inner, columns = shape.rows, shape.inner, shape.columns
    elements = shape.copies * (rows * inner + rows * columns + inner * columns)
    narrow = one.compute in ("bf16", "fp16")
    share = MISALIGNED * shape.aligned if narrow and shape.aligned < ALIGNED else 1.0
    return speed.matmul(2.0 * shape.copies * rows * inner * columns / share, elements)


def recurrent_seconds(one: Operation, speed: Speed) -> float:
    """Of all inputs at once, and of one step after another, each with its gates' own kernel."""
    step, *whole = one.products
    together = sum(product_seconds(shape, one, speed) for shape in whole)
    each = product_seconds(step, one, speed) + STEP_KERNELS * speed.kernel_seconds
    return together + one.lanes * each


def convolution_seconds(shape: Shape, one: Operation, speed: Speed) -> float:
    rows, inner, columns = shape.rows, shape.inner, shape.columns
    if shape.groups > 1 and shape.channels == 1:
        return DEPTHWISE_MOVES * one.num_bytes / len(one.products) / speed.bandwidth
    elements = rows * (shape.channels + columns) + inner * columns
    flops = 2.0 * rows * inner * columns
    return speed.convolve(flops, elements, shape.channels, channels_last=shape.channels_last)


def bias_seconds(one: Operation, speed: Speed) -> float:
    """Of a convolution's bias, which a GPU adds, and sums up in backward, in its own kernel."""
    if one.backward:
        summed = len(one.writes) > len(one.products)
        return one.reads[0].num_bytes / speed.bandwidth if summed else 0.0
    if len(one.reads) < 3:
        return 0.0
    return 2.0 * one.writes[0].num_bytes / speed.bandwidth + speed.kernel_seconds


def memory_seconds(one: Operation, speed: Speed) -> float:
    """Bytes over the bandwidth that kernels of that kind reach, and a kernel's start and end."""
    moved = float(one.num_bytes)
    written = sum(piece.num_bytes for piece in one.writes)
    if one.name in ("embedding", "index_select"):
        return 2.0 * written / speed.bandwidth + speed.kernel_seconds
    if one.name in ONE_OF_A_ROW:
        return written / speed.bandwidth + speed.kernel_seconds
    if one.tensors > 1:
        moved *= UPDATE_MOVES if "fused" in one.name else 1.0
        return moved / (speed.update_bandwidth or speed.bandwidth) + speed.kernel_seconds
    return rated_seconds(one, speed) / SHARES.get(one.name, 1.0) + speed.kernel_seconds


def rated_seconds(one: Operation, speed: Speed) -> float:
    pace = speed.kernel_rates.get(one.rate)
    pieces = (*one.reads, *one.writes)
    if pace is not None:  # elements read and written, whatever their size
        spent = sum(piece.elements for piece in pieces) / (pace * max(one.lanes, 1))
        return max(spent, one.num_bytes / speed.bandwidth)
    if not one.rate:
        return one.num_bytes / speed.bandwidth
    rough = {**dict.fromkeys((1, 8), speed.bandwidth), **speed.non_streaming}
    return sum(piece.num_bytes / rough.get(piece.size, speed.bandwidth) for piece in pieces)


def cooler(each: list[Price], measured: float, could: float) -> float:
    """How much faster products of 16 bits are among other work than one after another.

    At its power limit a chip lowers its clock. Work at the memory's pace takes fewer watts, so the
    clock among such work is higher, by the root of what is spared, up to the rate at which kernels
    can be fed (`could`).
    """
    whole = sum(price.device for price in each)
    products = sum(price.device for price in each if price.cause == "matrix")
    if not whole or not measured:
        return 1.0
    share = products / whole
    drawn = share + STREAMING_POWER * (1 - share)
    return max(1.0, min(could / measured, drawn**-0.5))
