"""Timing one workload under several plans: step time, throughput, MFU, memory.

A step is timed from an idle device to an idle device, after warm-up steps that pay for kernels,
caches and compilation; the median of several steps is the figure, and their spread says how far to
trust it. Memory is measured on one further step, because watching it slows the step down.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from stepladder.data import Batch
from stepladder.errors import StepladderError
from stepladder.measure import measure_memory
from stepladder.plan import BatchSplit, Plan
from stepladder.record import Memory
from stepladder.rungs import is_out_of_memory
from stepladder.train import Run, climb
from stepladder.train.user_code.user_code import LossFunction, UserCode
from stepladder.world import pick_device, synchronize
from stepladder.world.machine.process_memory import reset_peak


@dataclass(frozen=True, slots=True)
class Workload:
    """What every row of a table trains: the same weights on the same batches."""

    name: str
    make: Callable[[], nn.Module]
    batches: Sequence[Batch]
    code: UserCode | None = None  # where the loss is the user's own
    vocab: int | None = None
    device: str = "auto"

    @property
    def loss(self) -> str | LossFunction | None:
        """Found anew in each process: a function in a user's file cannot be sent to a rank."""
        samples = [self.batches[0].inputs]
        return self.code.read_loss(samples) if self.code else "cross_entropy"


@dataclass(frozen=True, slots=True)
class Row:
    """One plan, measured; `problem` says why a plan has no figures."""

    name: str
    plan: str
    step_ms: float | None = None  # median
    spread: float | None = None  # (slowest - fastest) / median of the middle half
    tokens_per_second: float | None = None
    mfu: float | None = None  # of the model's own FLOPs
    hfu: float | None = None  # recomputation included
    memory: Memory | None = None  # of one step, at its peak
    loss: float | None = None  # of the last batch, after the same number of steps
    problem: str = ""

    @property
    def peak_gib(self) -> float | None:
        return None if self.memory is None else self.memory.allocated_bytes / 2**30


def measure_plans(
    workload: Workload,
    plans: Iterable[tuple[str, Plan]],
    *,
    warmup: int = 3,
    steps: int = 10,
) -> Iterator[Row]:
    """One row a plan, as each is done; a plan that cannot run here says why, the rest go on."""
    for name, plan in plans:
        try:
            yield measure_plan(workload, name, plan, warmup, steps)
        except Exception as error:
            if not (isinstance(error, StepladderError) or is_out_of_memory(error)):
                raise
            yield Row(name, str(plan), problem=str(error).splitlines()[0])
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def measure_plan(workload: Workload, name: str, plan: Plan, warmup: int, steps: int) -> Row:
    run = climb(workload.make(), loss=workload.loss, plan=plan, device=workload.device, seed=0)
    chosen = len(run.events)  # how it was built, which is no problem
    batches = [batch.to(run.world.device) for batch in workload.batches]
    seconds, losses = time_steps(run, batches, warmup, steps)
    median = statistics.median(seconds)
    report = run.step(batches[0])
    tokens = batches[0].valid
    rates = run.flops.over(median, batches[0])
    report.read()
    reset_peak(run.world.device)
    memory = measure_memory(
        lambda: run.step(batches[0]),
        run.module,
        run.optimizer,
        run.world.device,
        vocab=workload.vocab,
    )
    return Row(
        name=name,
        plan=str(plan),
        step_ms=median * 1e3,
        spread=spread(seconds),
        tokens_per_second=tokens / median,
        mfu=rates.mfu,
        hfu=rates.hfu,
        memory=memory,
        loss=losses[-1],
        problem="; ".join(run.events[chosen:]),
    )


def time_steps(
    run: Run, batches: Sequence[Batch], warmup: int, steps: int
) -> tuple[list[float], list[float]]:
    """Seconds of each timed step, and every step's loss."""
    seconds, losses = [], []
    for index in range(warmup + steps):
        synchronize(run.world.device)
        began = time.perf_counter()
        report = run.step(batches[index % len(batches)])
        synchronize(run.world.device)
        seconds.append(time.perf_counter() - began)
        losses.append(report.loss)
    return seconds[warmup:], losses


def spread(seconds: Sequence[float]) -> float:
    """How far the middle half of the times lies apart, relative to the median."""
    ordered = sorted(seconds)
    quarter = len(ordered) // 4
    middle = ordered[quarter : len(ordered) - quarter]
    return (middle[-1] - middle[0]) / statistics.median(ordered)


def best_batch(rows: Sequence[Row]) -> Row | None:
    """The smallest batch within 2 % of the highest throughput: more would buy only memory."""
    known = [row for row in rows if row.tokens_per_second]
    top = max((row.tokens_per_second or 0.0 for row in known), default=0.0)
    return next((row for row in known if (row.tokens_per_second or 0.0) >= 0.98 * top), None)


def with_batch(plan: Plan, sequences: int) -> Plan:
    return replace(plan, batch=BatchSplit(sequences, plan.batch.micro))


def device_name(device: str) -> str:
    """The device a table was measured on, in words."""
    here = pick_device(device)
    return torch.cuda.get_device_name(here) if here.type == "cuda" else "CPU"
