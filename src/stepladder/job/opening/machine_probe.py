"""What this machine can do: its calibration, and the matmul peak, measured for every run.

Where nothing may be measured unasked, the few rates that a forecast needs serve one run alone.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch

from stepladder.calibrate import speeds_here
from stepladder.calibrate.calibrate import attempt, device_name, release, timed, warm_up
from stepladder.calibrate.fit_rates import fit
from stepladder.calibrate.probe import PRECISIONS, TYPES, Probe
from stepladder.calibrate.probes import probes_of
from stepladder.plan import Precision
from stepladder.record import Calibration, Timing
from stepladder.rungs import float32_matmul_mode

KINDS = ("stream", "update", "product", "attention", "norm", "activation", "loss")
EACH_SECONDS = 0.03
LIMIT_SECONDS = {"cpu": 3.0, "cuda": 5.0}
PEAK_SIZES = {"cpu": (512, 1024), "cuda": (4096, 8192)}  # of square matmuls
PEAK_SECONDS = 0.3  # for each size
STREAMED = 2**22  # fp32 elements: more would raise the memory that the process shows


@dataclass(frozen=True, slots=True)
class MachineProbe:
    calibration: Calibration
    compute: str  # the type that was timed
    peak_flops_per_second: float  # of the fastest matmul seen
    seconds: float  # that the probe took


def probe_machine(device: torch.device, precision: Precision) -> MachineProbe:
    """Measure the rates a forecast for this precision is made of."""
    began = time.perf_counter()
    warm_up(device)
    peak = matmul_peak(device, precision)
    found = speeds_here(device) or fit(
        device_name(device), list(timings(device, precision.compute))
    )
    calibration = complete(found, precision.compute, peak, device)
    release(device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)  # the run's own peak is reported later
    return MachineProbe(calibration, precision.compute, peak, time.perf_counter() - began)


def complete(found: Calibration, compute: str, peak: float, device: torch.device) -> Calibration:
    """The calibration with what a forecast cannot do without, where there was no time for it."""
    rates = {compute: peak, **found.matrix_flops_per_second}
    bandwidth = found.bandwidth_bytes_per_second or copy_rate(device)
    return replace(found, matrix_flops_per_second=rates, bandwidth_bytes_per_second=bandwidth)


def copy_rate(device: torch.device) -> float:
    """Bytes per second that a copy reads and writes."""
    a = torch.ones(STREAMED, device=device)
    return 2 * a.nbytes / timed(partial(torch.empty_like(a).copy_, a), device, 3, times=2)


def timings(device: torch.device, compute: str) -> Iterator[Timing]:
    """The probes of a calibration that this precision needs, each for a moment."""
    began = time.perf_counter()
    for probe in probes_of(device):
        if time.perf_counter() - began > LIMIT_SECONDS[device.type]:
            return
        if wanted(probe, compute):
            seconds = attempt(probe, device, EACH_SECONDS)
            if seconds is not None:
                yield Timing(probe.kind, probe.compute, probe.shape, seconds)


def wanted(probe: Probe, compute: str) -> bool:
    small = probe.kind != "stream" or compute != "fp32" or probe.shape[0] <= STREAMED
    return small and probe.kind in KINDS and probe.compute in ("", compute)


def matmul_peak(device: torch.device, precision: Precision) -> float:
    """FLOP/s of the fastest square matmul: what a step of this precision could at most reach."""
    best = 0.0
    dtype = TYPES[PRECISIONS[precision.compute].work]
    with float32_matmul_mode(precision, device):
        for size in PEAK_SIZES[device.type]:
            a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
            out = torch.empty_like(a)
            began = time.perf_counter()
            while time.perf_counter() - began < PEAK_SECONDS:
                seconds = timed(partial(torch.mm, a, b, out=out), device, 1)
                best = max(best, 2.0 * size**3 / seconds)
    return best
