"""Timings made into the few numbers that a forecast uses.

Apart from the timing, so that numbers timed once on a rare machine can be fitted again later.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from stepladder.hardware import Cluster
from stepladder.plan import BYTES, PRECISIONS, Batch, Plan
from stepladder.planner import forecast, pass_launches
from stepladder.record import Calibration, Timing
from stepladder.workload import Attention, find_facts

UPDATE_BYTES = 40  # of one fp32 parameter: AdamW's 28 and clipping's 12, as planner.time counts
TINY = "gpt:layers={},hidden=64,heads=2,vocab=256,sequence=16"
STEP_MODEL = "gpt:layers=2,hidden=256,heads=4,vocab=512,sequence=128"
BACKWARD = 2.5  # of attention, in forwards
LEAST_SHARE = 0.2  # of attention's time that is arithmetic, whatever moving its operands would take


def fit(device: str, timings: Sequence[Timing], context_bytes: int | None = None) -> Calibration:
    """The calibration that these timings amount to."""
    bandwidth = stream_rate(timings)
    rates, edges = {}, {}
    for compute in sorted({t.compute for t in timings if t.kind == "product"}):
        rates[compute], edges[compute] = product_rate(of(timings, "product", compute), bandwidth)
    attention = {
        compute: attention_rate(of(timings, "attention", compute), bandwidth)
        for compute in sorted({t.compute for t in timings if t.kind == "attention"})
    }
    found = Calibration(
        device=device,
        matrix_flops_per_second=rates,
        matrix_edges=edges,
        attention_flops_per_second=attention,
        bandwidth_bytes_per_second=bandwidth,
        optimizer_bytes_per_second=update_rate(timings),
        launch_seconds=launch_seconds(timings, device),
        context_bytes=context_bytes,
        timings=tuple(timings),
    )
    return corrected(found)


def corrected(found: Calibration) -> Calibration:
    """Let whole small steps that were timed say by how much a sum of their parts is off."""
    for timing in found.timings:
        if timing.kind == "step" and found.matrix_flops_per_second.get(timing.compute):
            rows = timing.shape[0]
            plan = Plan(precision=PRECISIONS[timing.compute], batch=Batch(rows, rows, 1))
            cluster = Cluster.parse(f"1 x {found.device}")
            said = forecast(find_facts(STEP_MODEL), plan, cluster, found).time
            if said is not None:
                parts = said.step_seconds - said.optimizer
                found = found.refined(timing.compute, timing.seconds / parts)
    return found


def of(timings: Sequence[Timing], kind: str, compute: str = "") -> list[Timing]:
    return [t for t in timings if t.kind == kind and t.compute == compute]


def stream_rate(timings: Sequence[Timing]) -> float | None:
    """The slowest: small tensors do not fill a device, large ones fit no processor's cache."""
    rates = [
        3 * operand_bytes(t.compute) * t.shape[0] / t.seconds for t in timings if t.kind == "stream"
    ]
    return min(rates, default=None)


def update_rate(timings: Sequence[Timing]) -> float | None:
    found = of(timings, "update")
    return UPDATE_BYTES * found[0].shape[0] / found[0].seconds if found else None


def product_rate(timings: Sequence[Timing], bandwidth: float | None) -> tuple[float, float]:
    """The rate of large products, and how often operands are moved: least squares of both.

    Seconds = flops / rate + edges · bytes / bandwidth, each timing weighing the same whatever its
    size. A coefficient below zero means that the shapes do not show it, so it is left out.
    """
    rows = [(product_flops(t) / t.seconds, product_bytes(t) / t.seconds) for t in timings]
    aa, bb = sum(a * a for a, _ in rows), sum(b * b for _, b in rows)
    ab, a1, b1 = sum(a * b for a, b in rows), sum(a for a, _ in rows), sum(b for _, b in rows)
    determinant = aa * bb - ab * ab
    if determinant > 1e-9 * aa * bb:
        per_flop, per_byte = (a1 * bb - b1 * ab) / determinant, (b1 * aa - a1 * ab) / determinant
        if per_flop > 0 and per_byte > 0:
            return 1 / per_flop, per_byte * (bandwidth or 0.0)
    return 1 / (a1 / aa), 0.0


def product_flops(timing: Timing) -> float:
    """Of a product and the two of its backward pass."""
    rows, inner, columns = timing.shape
    return 6.0 * rows * inner * columns


def product_bytes(timing: Timing) -> float:
    rows, inner, columns = timing.shape
    return 3.0 * (rows * inner + rows * columns + inner * columns) * operand_bytes(timing.compute)


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


def launch_seconds(timings: Sequence[Timing], device: str) -> float | None:
    """What a block more costs where the device waits for the host, by its launches.

    The probe trains in bf16, with autocast, but on a processor, where it trains in fp32.
    """
    found = sorted(of(timings, "launch"), key=lambda t: t.shape)
    if len(found) < 2:
        return None
    fewer, more = found[0], found[-1]
    a_block = (more.seconds - fewer.seconds) / (more.shape[0] - fewer.shape[0])
    block = find_facts(TINY.format(fewer.shape[0])).blocks[0]
    launches = pass_launches(block, autocast=device != "CPU")
    return a_block / launches if a_block > 0 else None
