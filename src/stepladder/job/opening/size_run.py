"""Sizes a run for its machine: probes it, times the run's own forward and backward, sets the steps.

Forward and backward run on the first batch before the first step and change no parameter. On a GPU
that is also where the run is compiled, so nothing is compiled twice. What is left of a minute then
decides the number of steps; it is written to the run's recipe, so a resumed run has the same.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, replace
from typing import Any

from stepladder.data import Source
from stepladder.job.summary.forecast_comparison import ForecastComparison
from stepladder.plan import Recipe
from stepladder.record import Forecast, Time
from stepladder.record.forecast import Interval
from stepladder.train import Run
from stepladder.train.health.out_of_memory import drop_gradients
from stepladder.train.loop import held_out
from stepladder.train.step_batch import as_batch
from stepladder.world import synchronize

from .machine_probe import MachineProbe, probe_machine
from .open_recipe import training_batches

TARGET_SECONDS = 60.0  # from opening the recipe to the end
END_SECONDS = 8.0  # of it, for the last evaluation, the checkpoint, the plots
LEAST_SECONDS = 15.0  # of steps, however long it took to compile
LEAST_STEPS, MOST_STEPS = 10, 20_000
# Of forward and backward, after the first; a GPU slows down when it gets hot.
TIMED_SECONDS = {"cpu": 1.0, "cuda": 3.0}
REPORTS = 50  # at least so many over the run


@dataclass(frozen=True, slots=True)
class GradientTime:
    """Seconds of forward and backward on one batch."""

    first: float  # with compiling and warming up
    median: float


@dataclass(frozen=True, slots=True)
class SizedRun:
    """A recipe with its steps settled, and the measurements that settled them."""

    recipe: Recipe
    comparison: ForecastComparison
    probe: MachineProbe
    gradients: GradientTime
    forecast_seconds: float  # of all steps and the evaluations between them

    def record(self) -> dict[str, Any]:
        """The journal's entry."""
        return {
            "probe": {
                "seconds": self.probe.seconds,
                "compute": self.probe.compute,
                "matmul_flops_per_second": self.probe.peak_flops_per_second,
                "bytes_per_second": self.probe.calibration.bandwidth_bytes_per_second,
                "first_gradients_seconds": self.gradients.first,
                "gradients_seconds": self.gradients.median,
                "training_seconds": self.forecast_seconds,
            }
        }


def size_run(
    run: Run,
    recipe: Recipe,
    training: Source,
    validation: Source,
    *,
    sample: Any,
    began: float,
) -> SizedRun:
    """Probe the machine, time the run's own gradients, and choose as many steps as fit a minute.

    Args:
        began: when the recipe was opened, by `time.perf_counter`.
    """
    probe = probe_machine(run.world.device, run.plan.precision)
    with training_batches(run, recipe, training) as feed:
        gradients = time_gradients(run, next(iter(feed)))
    judged = held_out(run, validation, size=recipe.train.batch, most=1)
    evaluation_seconds = time_evaluation(run, next(judged))
    comparison = ForecastComparison.start(run, run.plan, sample, probe.calibration)
    step_seconds = gradients.median
    if comparison.forecast:
        comparison.forecast = forecast_from_probe(comparison.forecast, gradients, probe)
        assert comparison.forecast.time is not None
        step_seconds = comparison.forecast.time.step_seconds
    comparison.calibration = None  # this run was forecast by its own probe, and corrects no other
    run.flops.peak = run.flops.peak or probe.peak_flops_per_second
    sized = with_steps(recipe, steps_for(step_seconds, time.perf_counter() - began))
    run.rate = sized.rate_choice()
    train = sized.train
    times = (train.steps - 1) // train.evaluate_every if train.evaluate_every else 0
    evaluated = times * train.evaluate_batches * evaluation_seconds
    return SizedRun(sized, comparison, probe, gradients, train.steps * step_seconds + evaluated)


def time_evaluation(run: Run, batch: Any) -> float:
    """Seconds of one batch's validation loss; the first time, which may compile, is not counted."""
    for _ in range(2):
        began = time.perf_counter()
        run.evaluate([batch])
    return time.perf_counter() - began


def time_gradients(run: Run, batch: Any) -> GradientTime:
    """Compute the first batch's gradients several times, and leave nothing of them."""
    buffers = [(buffer, buffer.clone()) for buffer in run.module.buffers()]  # running statistics
    device = run.world.device
    taken = as_batch(batch, run.position, run.plan.layout.data_ranks).to(device)
    found: list[float] = []
    while len(found) < 2 or sum(found[1:]) < TIMED_SECONDS[device.type]:
        began = time.perf_counter()
        run.gradients(taken)
        synchronize(device)
        found.append(time.perf_counter() - began)
        drop_gradients(run.climbed.shards)
        run.climbed.forward_backward.parts = []
    for buffer, before in buffers:
        buffer.copy_(before)
    return GradientTime(found[0], statistics.median(found[1:]))


def forecast_from_probe(
    planned: Forecast, gradients: GradientTime, probe: MachineProbe
) -> Forecast:
    """The planner's forecast, with forward and backward as they were timed."""
    peak = planned.peak_flops_per_second or probe.peak_flops_per_second
    assert planned.time is not None  # a probe measures all that the planner needs for one
    causes = planned.time.by_cause()
    factor = gradients.median / (planned.time.step_seconds - causes["optimizer"])
    timed = {name: s if name == "optimizer" else s * factor for name, s in causes.items()}
    scaled = Time(**timed)
    ratio = scaled.step_seconds / planned.time.step_seconds
    limits = planned.step_seconds
    return replace(
        planned,
        time=scaled,
        step_seconds=limits and Interval(limits.low * ratio, limits.high * ratio),
        peak_flops_per_second=peak,
    )


def steps_for(step_seconds: float, elapsed_seconds: float) -> int:
    """Steps that fill the rest of the minute, to two digits."""
    left = max(TARGET_SECONDS - END_SECONDS - elapsed_seconds, LEAST_SECONDS)
    steps = min(max(int(left / step_seconds), LEAST_STEPS), MOST_STEPS)
    digits = 10 ** (len(str(steps)) - 2)
    return steps // digits * digits


def with_steps(recipe: Recipe, steps: int) -> Recipe:
    """The recipe with so many steps, and reports often enough to be watched."""
    every = min(recipe.train.report_every, max(steps // REPORTS, 1))
    return replace(recipe, train=replace(recipe.train, steps=steps, report_every=every))
