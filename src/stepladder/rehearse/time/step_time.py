"""The door: a module's step time by the operations that its plan runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from stepladder.errors import PlanError
from stepladder.hardware import Cluster
from stepladder.plan import Optimizer, Plan, SettledPlan
from stepladder.planner.parse_inputs import cluster_of
from stepladder.planner.time.time_interval import time_interval
from stepladder.record import Calibration, Interval, Time
from stepladder.rehearse.fake_subject import few_micro_batches, rows_of_rank
from stepladder.rehearse.fake_world import Broadcasts
from stepladder.rehearse.gpu_recurrent import reporting_to
from stepladder.rehearse.recorder import BACKWARD, FORWARD, Recorder
from stepladder.rehearse.rehearse_step import played, rehearsable, run_steps, settled_for
from stepladder.rehearse.workspaces import Workspaces
from stepladder.seam.storages import plain_tensors
from stepladder.train.module_inputs import arranged_sample

from .fusion import fused
from .operations import ASKING, Operation, OperationLog, batch_copied, last_step
from .prices import Prices, prices_of
from .timeline import play


@dataclass(frozen=True, slots=True)
class StepTime:
    """The forecast of a step's time."""

    plan: str
    time: Time
    interval: Interval  # nine in ten
    host_seconds: float  # that the host takes to ask for a step
    device_seconds: float  # of the device's work
    operations: int  # that a step asks for
    kernels: int  # of them that the device does
    notes: tuple[str, ...] = ()

    @property
    def step_seconds(self) -> float:
        return self.time.step_seconds


def rehearse_time(
    model: nn.Module,
    plan: str | Plan,
    *,
    sample: Any,
    on: str | Cluster,
    loss: str | Callable[[Any, Any], torch.Tensor] | None = None,
    optimizer: str | Optimizer | None = None,
    calibration: Calibration | None = None,
) -> StepTime:
    """The time of a step on a cluster, from the operations that our own training step runs.

    Args:
        model: any module, on the meta device too; it stays as it is.
        plan: for all devices of the cluster.
        sample: a batch as `run.step` takes it.
        on: a cluster, such as "1 x H100-80GB".
        loss: as in `climb`.
        optimizer: in words, in place of the plan's.
        calibration: the rates measured there; None: those of the device table.

    >>> import torch
    >>> from stepladder.rehearse import rehearse_time
    >>> batch = torch.randn(8, 64), torch.randint(0, 16, (8,))
    >>> model = torch.nn.Linear(64, 16)
    >>> found = rehearse_time(model, "bf16", sample=batch, loss="cross_entropy", on="1 x H200")
    >>> found.host_seconds > found.device_seconds  # a step so small waits for its host
    True
    """
    cluster = cluster_of(on)
    if cluster.num_devices > 1:
        problem = f"has {cluster.num_devices} devices, and messages between them are not priced"
        raise PlanError("on", problem, "Name one device, or use sl.forecast.")
    device = "cpu" if cluster.device.is_cpu else "cuda"
    settled = settled_for(plan, optimizer, cluster.num_devices, device)
    operations, notes = step_operations(model, settled, sample=sample, loss=loss, device=device)
    prices = prices_of(cluster.device, settled.plan, calibration)
    if not all(speed.known for speed in prices.speeds.values()):
        problem = f"the speed of {cluster.device} is not known"
        raise PlanError("on", problem, "Measure it there: 'stepladder calibrate'.")
    given = arranged_sample(sample, model, loss)
    assert given is not None
    _, left = few_micro_batches(settled, rows_of_rank(settled, given))
    one = counted(as_planned(operations, settled.plan), prices)
    if left:
        fewer = without_one_pass(operations)
        one = grown(one, counted(as_planned(fewer, settled.plan), prices), left)
    time = one.time
    if calibration:
        time = time.times(calibration.correction(settled.plan.precision.compute))
    interval = time_interval(time, cluster.device, calibrated=calibration is not None)
    return StepTime(
        str(settled.plan), time, interval, one.host_seconds, one.device_seconds,
        one.operations, one.kernels, notes,
    )  # fmt: skip


def step_operations(
    model: nn.Module, settled: SettledPlan, *, sample: Any, loss: Any, device: str, rank: int = 0
) -> tuple[list[Operation], tuple[str, ...]]:
    """The operations of one step of a rank, and what is to be said of them."""
    eager, notes = rehearsable(settled, model, device)
    given = arranged_sample(sample, model, loss)
    if given is None:
        raise PlanError(
            "sample", "is None, and a step needs a batch", "Give one, of a row or more."
        )
    recorder = Recorder("cpu", Workspaces(device))
    log = OperationLog(recorder)
    heard = reporting_to(log.add_recurrence)
    with played(eager, rank, device, recorder, Broadcasts()) as world, log, heard, log.dropout:
        notes += run_steps(model, eager, world, given, loss, recorder, device)
    step = last_step(log.operations)
    if device != "cpu":
        times = rows_of_rank(settled, given) / max(given.num_rows, 1)
        step = [batch_copied(plain_tensors((given.inputs, given.targets)), times), *step]
    return step, notes


def as_planned(operations: list[Operation], plan: Plan) -> list[Operation]:
    """The operations as they run: rehearsed one by one, and fused where a compiler is asked."""
    return fused(operations) if plan.compile else operations


@dataclass(frozen=True, slots=True)
class Counted:
    """The operations of a step, with their times."""

    time: Time
    host_seconds: float
    device_seconds: float
    operations: int
    kernels: int


def counted(operations: Sequence[Operation], prices: Prices) -> Counted:
    time, line = priced(operations, prices)
    kernels = sum(one.kind != ASKING for one in operations)
    return Counted(time, line.host_seconds, line.device_seconds, len(operations), kernels)


def grown(step: Counted, shorter: Counted, left: int) -> Counted:
    """A step with so many micro-batches more, given the same with one fewer."""
    longer = {cause: spent * left for cause, spent in (step.time - shorter.time).items()}
    by_cause = step.time.by_cause().items()
    return Counted(
        Time(**{cause: max(spent + longer[cause], 0.0) for cause, spent in by_cause}),
        step.host_seconds + left * (step.host_seconds - shorter.host_seconds),
        step.device_seconds + left * (step.device_seconds - shorter.device_seconds),
        step.operations + left * (step.operations - shorter.operations),
        step.kernels + left * (step.kernels - shorter.kernels),
    )


def without_one_pass(operations: list[Operation]) -> list[Operation]:
    """The operations of a step with one micro-batch fewer."""
    first, second = [
        index + 1
        for index, (one, after) in enumerate(pairwise(operations))
        if (one.phase, after.phase) == (BACKWARD, FORWARD)
    ][:2]
    return operations[:first] + operations[second:]


def priced(operations: Sequence[Operation], prices: Prices) -> tuple[Time, Any]:
    """The step's time by cause: the device's work, and what it waits for."""
    each = prices.of_all(operations)
    line = play(operations, each, processor=prices.host.processor)
    causes: dict[str, float] = defaultdict(float)
    for price in each:
        causes[price.cause] += price.device
    causes["communication"] = line.exposed_seconds
    spent = line.device_seconds + line.exposed_seconds
    return Time(**causes, host=max(line.seconds - spent, 0.0)), line
