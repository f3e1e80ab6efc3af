"""Fitting a calibration's rates to timings.

Apart from the timing, so that numbers timed once on a rare machine can be fitted again later.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from stepladder.hardware import Cluster
from stepladder.plan import PRECISIONS, BatchSplit, Plan
from stepladder.plan.precision import BYTES
from stepladder.planner import forecast
from stepladder.record import Calibration, Timing
from stepladder.workload import Attention, find_facts

from .launch_costs import launch_costs
from .two_costs import fit_two_costs

UPDATE_BYTES = 40  # of one fp32 parameter: AdamW's 28 and clipping's 12, as planner.time counts
STEP_MODEL = "gpt:layers=2,hidden=256,heads=4,vocab=512,sequence=128"
BACKWARD = 2.5  # of attention, in forwards
# Bytes that an element's way through a rough kernel moves, forward and backward where both run.
NON_STREAMING_BYTES: dict[str, Callable[[int], float]] = {
    "norm": lambda size: 5.0 * size,
    "widen": lambda size: size + 4.0,
    "turn": lambda size: 2.0 * size,
    "spread": lambda size: 2.0 * size,
}
OWN_ELEMENTS = {"channel": 5.0, "group": 5.0, "pool": 3.5}  # read and written, both directions
SINGLE = 4  # bytes of float32
PRODUCT_KERNELS, SHORTEST = 3, 25.0  # that a timing has, and needs, in kernel starts
MOST_KERNEL_SECONDS = 2e-4  # no device takes that long to start a kernel, nor does a processor
LEAST_SHARE = 0.2  # of attention's time that is arithmetic, whatever moving its operands would take


def fit(device: str, timings: Sequence[Timing], context_bytes: int | None = None) -> Calibration:
    """The calibration that these timings amount to."""
    bandwidth, starts = stream_rate(timings), kernel_seconds(timings) or 0.0
    rates, edges = {}, {}
    for compute in sorted({t.compute for t in timings if t.kind == "product"}):
        rates[compute], edges[compute] = matmul_rate(
            timings_of(timings, "product", compute), bandwidth, starts
        )
    attention = {
        compute: attention_rate(timings_of(timings, "attention", compute), bandwidth)
        for compute in sorted({t.compute for t in timings if t.kind == "attention"})
    }
    convolution = {
        compute: matmul_rate(timings_of(timings, "convolution", compute), bandwidth, starts)
        for compute in sorted({t.compute for t in timings if t.kind == "convolution"})
    }
    launch, factors = launch_costs(timings, device)
    found = Calibration(
        device=device,
        convolution_flops_per_second={c: rate for c, (rate, _) in convolution.items()},
        convolution_edges={c: edges for c, (_, edges) in convolution.items()},
        colour_flops_per_second=few_channel_rates(timings),
        rough_bytes_per_second=non_streaming_rates(timings),
        elements_per_second=kernel_rates(timings),
        kernel_seconds=kernel_seconds(timings),
        launch_factors=factors,
        matrix_flops_per_second=rates,
        matrix_edges=edges,
        attention_flops_per_second=attention,
        bandwidth_bytes_per_second=bandwidth,
        optimizer_bytes_per_second=update_rate(timings),
        launch_seconds=launch,
        context_bytes=context_bytes,
        timings=tuple(timings),
    )
    return corrected(found)


def corrected(found: Calibration) -> Calibration:
    """Correct the rates by the ratio of timed small steps to their forecast."""
    for timing in found.timings:
        if timing.kind == "step" and found.matrix_flops_per_second.get(timing.compute):
            rows = timing.shape[0]
            plan = Plan(precision=PRECISIONS[timing.compute], batch=BatchSplit(rows, rows, 1))
            cluster = Cluster.parse(f"1 x {found.device}")
            said = forecast(find_facts(STEP_MODEL), plan, cluster, found).time
            if said is not None:
                parts = said.step_seconds - said.optimizer
                found = found.refined(timing.compute, timing.seconds / parts)
    return found


def timings_of(timings: Sequence[Timing], kind: str, compute: str = "") -> list[Timing]:
    return [t for t in timings if t.kind == kind and t.compute == compute]


def stream_rate(timings: Sequence[Timing]) -> float | None:
    """Memory bandwidth from the largest stream: smaller ones fit into caches."""
    streams = sorted((t for t in timings if t.kind == "stream"), key=lambda t: t.shape)
    return stream_bytes(streams[-1]) / streams[-1].seconds if streams else None


def stream_bytes(timing: Timing) -> float:
    return 3.0 * operand_bytes(timing.compute) * timing.shape[0]


def kernel_seconds(timings: Sequence[Timing]) -> float | None:
    """Fixed cost of a kernel: a small stream's time beyond its bytes at full bandwidth."""
    streams = sorted((t for t in timings if t.kind == "stream"), key=lambda t: t.shape)
    if len(streams) < 2:
        return None
    small, large = streams[0], streams[-1]
    start = max(small.seconds - stream_bytes(small) * large.seconds / stream_bytes(large), 0.0)
    return start if start <= MOST_KERNEL_SECONDS else None  # others were using the device


def non_streaming_rates(timings: Sequence[Timing]) -> dict[int, float]:
    """The middle one of kernels that go by rows, across strides, or from type to type, by type."""
    rates: dict[int, list[float]] = {}
    for timing in (t for t in timings if t.kind in NON_STREAMING_BYTES):
        size = operand_bytes(timing.compute)
        moved = NON_STREAMING_BYTES[timing.kind](size) * timing.shape[0] * timing.shape[1]
        wide = SINGLE if timing.kind == "widen" else size
        rates.setdefault(wide, []).append(moved / timing.seconds)
    return {size: statistics.median(each) for size, each in rates.items()}


def kernel_rates(timings: Sequence[Timing]) -> dict[str, float]:
    """Elements per second of norms and pools over images; of batch norms, per channel."""
    found = {}
    for kind, touched in OWN_ELEMENTS.items():
        own = [t for t in timings if t.kind == kind]
        rates = [
            touched * t.shape[0] * t.shape[2] ** 2 * (1 if kind == "channel" else t.shape[1])
            / t.seconds
            for t in own
        ]  # fmt: skip
        if rates:
            found[kind] = statistics.median(rates)
    return found


def few_channel_rates(timings: Sequence[Timing]) -> dict[str, float]:
    rates: dict[str, list[float]] = {}
    for timing in (t for t in timings if t.kind == "colours"):
        rates.setdefault(timing.compute, []).append(matmul_flops(timing) / timing.seconds)
    return {compute: statistics.median(each) for compute, each in rates.items()}


def update_rate(timings: Sequence[Timing]) -> float | None:
    found = timings_of(timings, "update")
    return UPDATE_BYTES * found[0].shape[0] / found[0].seconds if found else None


def matmul_rate(
    timings: Sequence[Timing], bandwidth: float | None, starts: float = 0.0
) -> tuple[float, float]:
    """The rate of large products, and how often operands are moved: least squares of both.

    Seconds = flops / rate + edges · bytes / bandwidth. What starting kernels takes is taken off,
    and what is hardly longer than that says nothing.
    """
    lasted = [(t, t.seconds - PRODUCT_KERNELS * starts) for t in timings]
    lasting = [(t, s) for t, s in lasted if s > SHORTEST * starts]
    lasting = lasting or [(t, t.seconds) for t in timings]  # never less than nothing
    per_flop, per_byte = fit_two_costs([(matmul_flops(t), matmul_bytes(t), s) for t, s in lasting])
    return 1 / per_flop, per_byte * (bandwidth or 0.0)


def matmul_flops(timing: Timing) -> float:
    """Of a product, or a convolution, and the two of its backward; images want one less."""
    if timing.kind in ("convolution", "colours"):
        samples, into, side, out, window, stride = timing.shape
        pixels = samples * (side // stride) ** 2
        products = 4.0 if timing.kind == "colours" else 6.0
        return products * pixels * into * window**2 * out
    rows, inner, columns = timing.shape
    return 6.0 * rows * inner * columns


def matmul_bytes(timing: Timing) -> float:
    size = 3.0 * operand_bytes(timing.compute)
    if timing.kind == "convolution":
        samples, into, side, out, window, stride = timing.shape
        pixels = samples * (side // stride) ** 2
        return size * (pixels * (into + out) + into * window**2 * out)
    rows, inner, columns = timing.shape
    return size * (rows * inner + rows * columns + inner * columns)


def operand_bytes(compute: str) -> int:
    return 1 if compute == "fp8" else BYTES[PRECISIONS[compute].work]


def attention_rate(timings: Sequence[Timing], bandwidth: float | None) -> float:
    """The rate at which forward and a backward of 2.5 forwards take what was timed."""
    rates = []
    for timing in timings:
        samples, heads, length, width = timing.shape
        one = Attention(heads, heads, width, length)
        moved = 4.0 * heads * width * length * samples * operand_bytes(timing.compute)
        forward = timing.seconds / (1 + BACKWARD)
        busy = forward - (moved / bandwidth if bandwidth else 0.0)
        rates.append(one.flops * samples / max(busy, LEAST_SHARE * forward))
    return statistics.median(rates)
