"""The roofline of this device (Williams et al. 2009), measured, with typical operations on it.

An operation that does F arithmetic operations on B bytes of memory takes at least
max(F / peak, B / bandwidth) seconds. So its rate is under min(peak, F/B · bandwidth): a roof that
rises with F/B, its arithmetic intensity, up to the ridge peak / bandwidth and is flat from there.

Both roofs are measured: the peak of each type is the best rate of any square matmul, the bandwidth
the best of the operations whose operands are far larger than caches; these reach 100 % by
definition. Bytes of an operation are those it must move, each operand once: what stays in a cache
between two calls can pass the roof of memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from stepladder.errors import WorldError
from stepladder.hardware import Device, recognise_device
from stepladder.plan import PRECISIONS
from stepladder.rungs import float32_matmul_mode, is_out_of_memory
from stepladder.world import detect_machine, device_memory_bytes
from stepladder.world.machine.precision_support import precision_support

from .operations import COMPUTES, STREAMS, Operation, copy_bytes, operations_of
from .stopwatch import fastest_seconds

BUDGET_SECONDS = 0.2  # of an operation
Timing = tuple[Operation, float | None]  # seconds of a call; None where it cannot run here


@dataclass(frozen=True, slots=True)
class Roofs:
    """What bounds every operation of this device."""

    peaks: dict[str, float]  # measured FLOP/s of the best matmul, by type
    stated_peaks: dict[str, float | None]  # the device table's
    bytes_per_second: float  # of its memory
    stated_bytes_per_second: float | None
    host_bytes_per_second: float  # GPU: from pinned host memory; CPU: from memory to memory

    def ridge(self, compute: str) -> float:
        """The intensity from which on arithmetic, not memory, is the bound."""
        return self.peaks[compute] / self.bytes_per_second

    def roof(self, compute: str, intensity: float) -> float:
        return min(self.peaks[compute], intensity * self.bytes_per_second)


@dataclass(frozen=True, slots=True)
class RooflinePoint:
    """One operation: what it does, how long it takes, and what the roofs allow."""

    operation: str
    shape: str
    compute: str
    flops: float
    bytes: float
    seconds: float | None = None
    roof: float | None = None  # FLOP/s that the roofs allow
    bound: str = ""  # "compute" or "memory"
    problem: str = ""

    @property
    def intensity(self) -> float:
        return self.flops / self.bytes

    @property
    def achieved(self) -> float | None:
        return self.flops / self.seconds if self.seconds else None

    @property
    def share(self) -> float | None:
        """Of the roof; above 1 where operands stayed in a cache."""
        return self.achieved / self.roof if self.achieved and self.roof else None


def time_operations(device: torch.device, budget: float = BUDGET_SECONDS) -> Iterator[Timing]:
    """Every operation with its seconds, as each is done."""
    for operation in operations_here(device):
        yield operation, time_operation(operation, device, budget)


def operations_here(device: torch.device) -> list[Operation]:
    return list(operations_of(device.type, supported_types(device.type)))


def place_operations(
    device: torch.device, timings: Sequence[Timing], budget: float = BUDGET_SECONDS
) -> tuple[Roofs, list[RooflinePoint]]:
    """The roofs of a device, and the timed operations under them."""
    roofs = find_roofs(timings, table_row(device), host_rate(device, budget))
    return roofs, [place(operation, seconds, roofs) for operation, seconds in timings]


def find_roofs(timings: Sequence[Timing], known: Device | None, host: float) -> Roofs:
    """Peaks from the matmuls among what was timed, bandwidth from what passes through memory."""
    peaks: dict[str, float] = {}
    bandwidth = 0.0
    for one, seconds in timings:
        if one.name == "matmul" and seconds:
            peaks[one.compute] = max(peaks.get(one.compute, 0.0), one.flops / seconds)
        if one.name in STREAMS and seconds:
            bandwidth = max(bandwidth, one.bytes / seconds)
    if not (peaks and bandwidth):
        problem = "no roof could be measured: neither matmuls nor additions ran to their end"
        raise WorldError("device", problem, "Free some memory, or name another with --device.")
    return Roofs(
        peaks=peaks,
        stated_peaks={compute: known.peak(compute) if known else None for compute in peaks},
        bytes_per_second=bandwidth,
        stated_bytes_per_second=known.bandwidth_bytes_per_second if known else None,
        host_bytes_per_second=host,
    )


def host_rate(device: torch.device, budget: float) -> float:
    size, copy = copy_bytes(device)
    return size / fastest_seconds(copy, device, budget)


def table_row(device: torch.device) -> Device | None:
    if device.type != "cuda":
        return None
    return recognise_device(torch.cuda.get_device_name(device), device_memory_bytes(device))


def place(operation: Operation, seconds: float | None, roofs: Roofs) -> RooflinePoint:
    """An operation under the roofs."""
    compute, intensity = operation.compute, operation.flops / operation.bytes
    if compute not in roofs.peaks:
        seconds = None
    roof = roofs.roof(compute, intensity) if seconds else None
    bound = "compute" if roof == roofs.peaks.get(compute) else "memory"
    return RooflinePoint(
        operation.name, operation.shape, compute, operation.flops, operation.bytes, seconds,
        roof, bound if roof else "", "" if seconds else "does not run here",
    )  # fmt: skip


def supported_types(kind: str) -> list[str]:
    """The types with instructions of their own here: an imitation says nothing about the device."""
    answers = {row.precision: row.answer for row in precision_support(detect_machine())}
    return [compute for compute in COMPUTES[kind] if answers.get(compute) == "yes"]


def time_operation(operation: Operation, device: torch.device, budget: float) -> float | None:
    """Seconds of a call; None where this device, its memory or this torch cannot do it."""
    try:
        with float32_matmul_mode(PRECISIONS[operation.compute], device):
            return fastest_seconds(operation.make(device), device, budget)
    except (RuntimeError, NotImplementedError) as error:
        if is_out_of_memory(error) and device.type == "cuda":
            torch.cuda.empty_cache()
        return None
