"""`calibrate`: time every probe on this device and fit the rates that a forecast uses.

Each probe is warmed up, repeated while its share of the time lasts, and its median counts. The
timings themselves are kept, and the few numbers that the planner reads are fitted to them.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence

import torch

from stepladder.hardware import recognise_device
from stepladder.plan import FP32
from stepladder.record import Calibration, Timing
from stepladder.rungs import float32_matmul_mode, is_out_of_memory
from stepladder.world import device_memory_bytes, synchronize

from .fit_rates import fit, matmul_flops
from .launch_costs import TINY
from .probe import PRECISIONS, Probe, Work
from .probes import WORKS, probes_of

Progress = Callable[[str, float], None]  # what is being timed, and the share that is done

EACH_SECONDS = 0.15
# A host is not equally fast from one moment to the next (a quarter apart on an H200's), and its
# costs are differences of two probes: those are timed for longer.
HOST_KINDS, HOST_LONGER = (*TINY, "ask for an update"), 3
WARM_SECONDS = 1.0  # until the chip is as hot as training makes it
# Half precision may be a hundred times slower on a processor: where one call of a kind takes this
# long, its larger shapes would take all the time that there is, and tell no more.
LONG_SECONDS = 1.0
# A processor without instructions for 16-bit numbers multiplies them a thousand times slower than
# 32-bit ones (0.03 GFLOP/s on a Neoverse N1), where the smallest shape takes seconds a call. One
# small matmul shows it, and is then all that is timed of that type.
SMALL_MATMUL = (128, 128, 128)
LEAST_FLOPS_PER_SECOND = 1e9


def calibrate(
    device: torch.device,
    budget_seconds: float = 90.0,
    progress: Progress | None = None,
    *,
    probes: Sequence[Probe] = (),
) -> Calibration:
    """Time this device; what does not fit the budget, or cannot run here, stays unknown.

    Args:
        probes: what is timed, in that order; none: everything.
    """
    began, timed_probes = time.monotonic(), probes or list(probes_of(device))
    # In the middle of a run other processes may hold memory, which would be taken for a context.
    context = None if probes else context_bytes(device)
    warm_up(device)
    each = min(EACH_SECONDS, budget_seconds / (2 * len(timed_probes)))
    timings = slow_types(device)
    emulated = {timing.compute for timing in timings}
    slow: set[tuple[str, str]] = set()
    for index, probe in enumerate(timed_probes):
        if (probe.kind, probe.compute) in slow or probe.compute in emulated:
            continue
        if time.monotonic() - began > budget_seconds:
            break
        if progress:
            progress(str(probe), index / len(timed_probes))
        longer = HOST_LONGER if probe.kind in HOST_KINDS else 1
        seconds = attempt(probe, device, longer * each)
        if seconds is not None:
            timings.append(Timing(probe.kind, probe.compute, probe.shape, seconds))
            if seconds > LONG_SECONDS:
                slow.add((probe.kind, probe.compute))
    release(device)
    return fit(device_name(device), timings, context)


def slow_types(device: torch.device) -> list[Timing]:
    """A small matmul in each 16-bit type that this processor has no instructions for."""
    if device.type == "cuda":
        return []
    found = []
    for compute in ("bf16", "fp16"):
        seconds = attempt(Probe("product", compute, SMALL_MATMUL), device, 0.0)
        if seconds is None:
            continue
        timing = Timing("product", compute, SMALL_MATMUL, seconds)
        if matmul_flops(timing) / seconds < LEAST_FLOPS_PER_SECOND:
            found.append(timing)
    return found


def attempt(probe: Probe, device: torch.device, seconds: float) -> float | None:
    """Seconds of one probe; None where this device or this torch cannot do it."""
    try:
        with float32_matmul_mode(PRECISIONS.get(probe.compute, FP32), device):
            return median_seconds(WORKS[probe.kind](probe, device), device, seconds)
    except Exception as error:  # what cannot be timed here is unknown, which is an answer
        if is_out_of_memory(error):
            release(device)
        return None


def median_seconds(work: Work, device: torch.device, seconds: float) -> float:
    """The median time of one call, on a device whose queue never empties."""
    one = timed(work, device, 1, times=2)
    repeats = max(1, round(0.01 / max(one, 1e-7)))  # 10 ms between two readings of the clock
    runs, began = [timed(work, device, repeats)], time.monotonic()
    while time.monotonic() - began < seconds:
        runs.append(timed(work, device, repeats))
    return statistics.median(runs)


def timed(work: Work, device: torch.device, repeats: int, *, times: int = 1) -> float:
    spent = 0.0
    for _ in range(times):
        synchronize(device)
        began = time.perf_counter()
        for _ in range(repeats):
            work()
        synchronize(device)
        spent = (time.perf_counter() - began) / repeats
    return spent


def warm_up(device: torch.device) -> None:
    if device.type != "cuda":
        return
    x = torch.randn(8192, 8192, device=device, dtype=torch.bfloat16)
    median_seconds(lambda: x @ x, device, WARM_SECONDS)


def release(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def context_bytes(device: torch.device) -> int | None:
    """What the device lost to this process before it held a tensor of ours."""
    if device.type != "cuda":
        return None
    x = torch.randn(256, 256, device=device, dtype=torch.bfloat16)
    (x @ x).sum().item()  # loads the kernels and libraries that every run loads
    free, total = torch.cuda.mem_get_info(device)
    return max(total - free - torch.cuda.memory_reserved(device), 0)


def device_name(device: torch.device) -> str:
    """The device table's name for it, or its own where the table has none."""
    if device.type != "cuda":
        return "CPU"
    shown = torch.cuda.get_device_name(device)
    known = recognise_device(shown, device_memory_bytes(device))
    return known.name if known else shown
