"""What an operation costs: seconds of the device, and of the host that asks for it.

The rates are the planner's (`device_speed`), measured where there is a calibration. Constants here
say how kernels of one operation differ from the kernels that those rates were measured with; each
was chosen on modules other than the one it is reported on (benchmarks/results/time_gpu.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from stepladder.hardware import Device
from stepladder.plan import Plan, Precision
from stepladder.planner.time.device_speed import Speed, speed_of
from stepladder.planner.time.host_time import HOST_FACTORS
from stepladder.planner.time.part_time import ATTENTION_BACKWARD, width_share
from stepladder.record import Calibration

from .operations import (
    ASKING,
    ATTENTION,
    COLLECTIVE,
    CONVOLUTION,
    PRODUCT,
    AttentionShape,
    Operation,
    Shape,
)

CHANNEL = "channel"
MASKED_SHARE = 0.6  # of flash attention's rate, by the kernels that take a mask
DEPTHWISE_MOVES = 4.0  # times that a convolution of single channels moves its images
VIEW_SHARE = 0.12  # of a launch: a view, or an allocation


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
    processor: bool  # whether the host is the device
    compiled: bool  # whether a compiler asks for kernels, and not torch for operations
    factors: Mapping[str, float] = field(default_factory=dict)

    def of(self, one: Operation) -> Price:
        host = self.host_seconds(one)
        if one.kind == ASKING:
            return Price(0.0, host)
        speed = self.speed(one)
        if one.kind == PRODUCT:
            spent = sum(product_seconds(shape, speed) for shape in one.products)
            return Price(spent + speed.kernel_seconds, host, "matrix")
        if one.kind == CONVOLUTION:
            spent = sum(convolution_seconds(shape, one, speed) for shape in one.products)
            return Price(spent + speed.kernel_seconds * len(one.products), host, "matrix")
        if one.kind == ATTENTION and one.attention is not None:
            spent = attention_seconds(one.attention, one, speed)
            return Price(spent + speed.kernel_seconds, host, "attention")
        if one.kind == COLLECTIVE:
            return Price(0.0, host, "communication")
        return Price(memory_seconds(one, speed), host, cause_of(one))

    def speed(self, one: Operation) -> Speed:
        compute = self.single if one.compute in ("", "fp32") else one.compute
        return self.speeds.get(compute) or self.speeds[self.single]

    def host_seconds(self, one: Operation) -> float:
        """Of asking for an operation; on a processor the work itself is the wait."""
        launch = self.speeds[self.single].launch_seconds
        if self.compiled and one.tensors == 1:
            return self.factors["compiled"] * launch
        if one.kind == ASKING:
            return VIEW_SHARE * launch
        if one.kind in (PRODUCT, CONVOLUTION, ATTENTION):
            return self.factors["product"] * launch
        if one.tensors > 1:
            whole = "fused" in one.name
            return (self.factors["tensor"] * one.tensors * (1.0 if whole else 0.5)) * launch
        return self.factors["cheap"] * launch


def prices_of(device: Device, plan: Plan, calibration: Calibration | None) -> Prices:
    """The prices of a device in a plan."""
    precision = plan.precision
    single = "tf32" if precision.compute == "tf32" else "fp32"
    computes = {single, "bf16", "fp16", precision.compute}
    speeds = {
        compute: speed_of(device, Precision.parse(compute), calibration)
        for compute in sorted(computes)
    }
    factors = {**HOST_FACTORS, **(calibration.launch_factors if calibration else {})}
    return Prices(speeds, single, device.is_cpu, bool(plan.compile), factors)


def cause_of(one: Operation) -> str:
    return "optimizer" if one.tensors > 1 or one.phase == "optimizer step" else "memory_bound"


def product_seconds(shape: Shape, speed: Speed) -> float:
    rows, inner, columns = shape.rows, shape.inner, shape.columns
    elements = shape.copies * (rows * inner + rows * columns + inner * columns)
    return speed.matmul(2.0 * shape.copies * rows * inner * columns, elements)


def convolution_seconds(shape: Shape, one: Operation, speed: Speed) -> float:
    rows, inner, columns = shape.rows, shape.inner, shape.columns
    if shape.groups > 1 and shape.channels == 1:
        return DEPTHWISE_MOVES * one.num_bytes / len(one.products) / speed.bandwidth
    elements = rows * (shape.channels + columns) + inner * columns
    flops = 2.0 * rows * inner * columns
    return speed.convolve(flops, elements, shape.channels, channels_last=shape.channels_last)


def attention_seconds(shape: AttentionShape, one: Operation, speed: Speed) -> float:
    whole = 4.0 * shape.batch * shape.heads * shape.length * shape.keys * shape.width
    flops = whole / 2 if shape.causal else whole
    rate = speed.attention * width_share(shape.width, speed)
    rate *= MASKED_SHARE if shape.masked else 1.0
    times = ATTENTION_BACKWARD if one.backward else 1.0
    return times * flops / rate + one.num_bytes / speed.bandwidth


def memory_seconds(one: Operation, speed: Speed) -> float:
    """Bytes over the bandwidth that kernels of that kind reach, and a kernel's start and end."""
    moved = float(one.num_bytes)
    if one.name in ("embedding", "index_select"):
        moved = 2.0 * sum(piece.num_bytes for piece in one.writes)
    if one.tensors > 1:
        return moved / (speed.update_bandwidth or speed.bandwidth) + speed.kernel_seconds
    pace = speed.kernel_rates.get(one.rate)
    if pace is not None:  # elements read and written, whatever their size
        elements = sum(piece.elements for piece in (*one.reads, *one.writes))
        spent = elements / (pace * max(one.lanes, 1))
        return max(spent, moved / speed.bandwidth) + speed.kernel_seconds
    if not one.rate:
        return moved / speed.bandwidth + speed.kernel_seconds
    rough = {**dict.fromkeys((1, 8), speed.bandwidth), **speed.non_streaming}
    pieces = (*one.reads, *one.writes)
    return sum(p.num_bytes / rough[p.size] for p in pieces) + speed.kernel_seconds
