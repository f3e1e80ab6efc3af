"""The sentences around a run: its forecast before the first step, MFU, how to prove sameness."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .tables import size

if TYPE_CHECKING:
    from stepladder.job import JobStart, TrainResult
    from stepladder.record import Forecast, Memory

SAMENESS = (
    "To prove sameness: 'stepladder verify parity' (other plans compute what one device computes), "
    "'stepladder verify resume' (a run that is killed goes on to the same bits)."
)


def forecast_lines(start: JobStart) -> list[str]:
    """What is forecast before the first step, and where the forecast comes from."""
    sized = start.sized
    if sized is None:
        return [f"Forecast: {quantities(start.forecast)}."] if start.forecast else []
    if start.forecast:
        known = quantities(start.forecast)
    else:  # a device or a module that the planner knows nothing of
        known = f"{duration(sized.gradients.median)} a step, no memory ({sized.comparison.unknown})"
    steps, seconds = sized.recipe.train.steps, sized.forecast_seconds
    return [
        f"Forecast: {known}; {steps:,} steps in {seconds:.0f} s, about a minute of this machine "
        "in all.",
        f"From a probe of {sized.probe.seconds:.1f} s: {probe_rates(start)}; forward and backward "
        f"of the first batch, timed: {duration(sized.gradients.median)} "
        f"({duration(sized.gradients.first)} the first time).",
        SAMENESS,
    ]


def quantities(planned: Forecast) -> str:
    found = [memory_text(planned.memory)]
    if planned.time is None:
        found.append("a step time that is unknown until 'stepladder calibrate' has run here")
    else:
        found.append(f"{duration(planned.time.step_seconds)} a step")
        found.append(f"{planned.tokens_per_second or 0.0:,.0f} tokens/s")
    if planned.mfu is not None:
        found.append(f"MFU {planned.mfu:.0%}")
    return ", ".join(found)


def memory_text(memory: Memory) -> str:
    """The peak; on a CPU, whose runtime is not counted, a log line shows more than the tensors."""
    whole = "of memory" if memory.context else "of tensors"
    return f"{size(memory.peak_bytes)} {whole}"


def probe_rates(start: JobStart) -> str:
    assert start.sized is not None
    probe = start.sized.probe
    rate = f"{flops(probe.peak_flops_per_second)} {probe.compute} in matmuls"
    moved = probe.calibration.bandwidth_bytes_per_second
    return rate if moved is None else f"{rate}, {moved / 1e9:,.3g} GB/s of memory"


def mfu_line(result: TrainResult) -> str:
    """MFU and what it is a share of; empty where the device's peak is unknown."""
    if result.mfu is None or result.peak_flops_per_second is None:
        return ""
    compute = result.plan.precision.compute
    of = "this CPU's measured" if result.peak_measured else "the device's dense"
    return f"MFU {result.mfu:.0%} of {of} {flops(result.peak_flops_per_second)} {compute}."


def flops(rate: float) -> str:
    return f"{rate / 1e12:,.3g} TFLOP/s" if rate >= 1e12 else f"{rate / 1e9:,.3g} GFLOP/s"


def duration(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"
