"""How far a step's measured time may lie from its forecast, from what the step consists of.

Large products on a device that has been measured leave little open; traffic of operations that each
program writes in its own way, and messages between machines, leave more. The parts are taken as
independent: their variances add up. Nine in ten published runs lie inside, and so they do where a
source is forecast with constants chosen on the others; 87 % do where the width is chosen on the
others too (benchmarks/planner/cross_validation.py).
"""

from __future__ import annotations

from math import exp, sqrt

from stepladder.hardware import Device
from stepladder.record import Interval, Time

# Standard deviation of each cause's time, as a share of it.
SPREAD = {
    "matrix": 0.04, "attention": 0.2, "memory_bound": 0.3, "communication": 0.25,
    "bubble": 0.4, "optimizer": 0.3, "data": 0.5, "host": 0.6,
}  # fmt: skip
SOFTWARE = 0.07  # of any step: what no forecast sees of a program
STAGES = 0.2  # of a pipeline's: stages wait for each other's messages and for the slowest
MIXTURE = 0.2  # of a mixture of experts': some are busier than others, and rows travel to them
UNMEASURED = 0.08  # of one on a device of which we have measured none like it
MEASURED = ("A100", "A800", "H100", "H200", "H800", "GH200")  # families with own or many rows
FIVE_TO_95 = 1.645  # standard deviations between the middle and either end of nine in ten
LATE = 1.35  # of them upwards: a program finds more ways to be slow than to be fast


def time_interval(
    time: Time,
    device: Device,
    *,
    pipeline: int = 1,
    mixture: bool = False,
    calibrated: bool = False,
) -> Interval:
    """The 90 % interval of a step's seconds."""
    whole = time.step_seconds or 1.0
    parts = ((SPREAD[cause] * s / whole) ** 2 for cause, s in time.by_cause().items())
    known = calibrated or device.name.startswith(MEASURED)
    variance = sum(parts) + SOFTWARE**2
    variance += (STAGES**2 if pipeline > 1 else 0.0) + (0.0 if known else UNMEASURED**2)
    variance += MIXTURE**2 if mixture else 0.0
    off = FIVE_TO_95 * sqrt(variance)
    return Interval(time.step_seconds * exp(-off), time.step_seconds * exp(LATE * off))
