"""Forecasting one plan on one cluster: whether it fits, how fast it is, what it costs."""

from __future__ import annotations

from typing import Any, Literal, overload

from stepladder.errors import PlanError
from stepladder.hardware import Cluster
from stepladder.plan import Plan
from stepladder.planner.memory.forecast_memory import forecast_memory, peak_interval
from stepladder.planner.time.expert_exchange import sent_bytes, with_load
from stepladder.planner.time.step_time import forecast_time
from stepladder.planner.time.time_interval import time_interval
from stepladder.record import Calibration, Forecast, Interval, Memory, Time
from stepladder.services import service
from stepladder.workload import Facts

from .legality import plan_problems, settle_unchecked
from .parse_inputs import check_calibration, cluster_of, facts_of, plan_of
from .training_software import OURS, Software

MARGIN = 0.95  # of the usable memory that a search fills; the rest is for what no forecast sees
USABLE = 0.985  # of a card's memory; the driver and error correction keep the rest

GIB = 2**30


@overload
def forecast(
    facts: Facts | str,
    plan: Plan | str,
    cluster: Cluster | str,
    calibration: Calibration | None = None,
    *,
    price: float | None = None,
    software: Software = OURS,
    expert_load: float = 1.0,
) -> Forecast: ...


@overload
def forecast(
    facts: Any,
    plan: Plan | str,
    cluster: Cluster | str,
    calibration: Calibration | None = None,
    *,
    price: float | None = None,
    rehearse: Literal[True],
    sample: Any = None,
    loss: Any = None,
) -> Forecast: ...


def forecast(
    facts: Any,
    plan: Plan | str,
    cluster: Cluster | str,
    calibration: Calibration | None = None,
    *,
    price: float | None = None,
    software: Software = OURS,
    expert_load: float = 1.0,
    rehearse: bool = False,
    sample: Any = None,
    loss: Any = None,
) -> Forecast:
    """Forecast memory by owner and time by cause; the reasons say what makes a plan illegal.

    Args:
        facts: of the workload; a model's name, as for `plan` and `cluster` their text, will do.
            With `rehearse`, the module itself, on the meta device too, or a model's name.
        price: dollars of one device for one hour; None: of the table.
        expert_load: rows of the busiest rank's experts over an even share, where `experts=` spreads
            them: a run's `report.expert_rank_load`.
        rehearse: run the plan's own step on tensors without numbers: seconds in place of
            milliseconds, and memory of any module by owner, moment and module, in `.rehearsal`;
            where it does not fit, `.changes` says what each change frees.
        sample: with `rehearse`, a batch as `run.step` takes it.
        loss: with `rehearse`, as in `climb`.

    >>> import stepladder as sl
    >>> said = sl.forecast("llama3-8b", "bf16 zero3 micro=1 batch=8", "8 x H100-80GB")
    >>> said.fits, said.memory.peak_bytes < 80 * 2**30
    (True, True)
    """
    if rehearse:
        found: Forecast = service("forecast_by_rehearsal")(
            facts, plan, cluster, calibration, sample=sample, loss=loss, price=price
        )
        return found
    if sample is not None or loss is not None:
        problem = "is for a step that is rehearsed, and formulas take none"
        field = "loss" if sample is None else "sample"
        raise PlanError(field, problem, "Add rehearse=True, or give it to sl.describe.")
    return forecast_by_formula(
        facts, plan, cluster, calibration,
        price=price, software=software, expert_load=expert_load,
    )  # fmt: skip


def forecast_by_formula(
    facts: Facts | str,
    plan: Plan | str,
    cluster: Cluster | str,
    calibration: Calibration | None,
    *,
    price: float | None,
    software: Software,
    expert_load: float,
) -> Forecast:
    facts, plan, cluster = facts_of(facts), plan_of(plan), cluster_of(cluster, price)
    check_calibration(calibration)
    settled = plan.settle(cluster.num_devices)
    assert settled.batch.sequences is not None
    spread = settled.layout.experts > 1
    slowest = with_load(facts, expert_load) if spread else facts  # of all ranks
    memory, host_bytes = forecast_memory(slowest, settled, cluster, calibration, software)
    limit = memory_limit(settled, cluster)
    reasons = memory_reasons(memory, limit, host_bytes, cluster)
    if software is OURS:  # others have rules of their own
        reasons += tuple(str(problem) for problem in plan_problems(facts, plan, cluster))
    time = forecast_time(slowest, settled, cluster, calibration, software)
    if time is None:
        reasons += (
            f"time: no speed is known for {cluster.device} in {settled.precision.compute}.",
        )
    device, flops = cluster.device, facts.flops_per_sample
    return Forecast(
        plan=str(settled),
        memory=memory,
        memory_limit_bytes=limit,
        host_bytes=host_bytes,
        fits=fits(memory, limit, host_bytes, cluster),
        reasons=reasons,
        num_devices=cluster.num_devices,
        time=time,
        step_seconds=step_interval(time, facts, settled, cluster, calibration),
        tokens_per_step=settled.batch.sequences * facts.tokens,
        flops_per_step=None if flops is None else settled.batch.sequences * flops,
        peak_flops_per_second=peak_of(cluster, settled.precision.compute, calibration),
        watts=device.power_watts,
        dollars_per_hour=device.dollars_per_hour,
        price_source=device.price_source,
        peak_bytes=peak_interval(memory, software),
        unit=facts.unit,
        expert_sent_bytes=sent_bytes(facts, settle_unchecked(settled, cluster)),
    )


def peak_of(cluster: Cluster, compute: str, calibration: Calibration | None) -> float | None:
    """The table's peak; of a device that has none there, what its largest products reached."""
    measured = calibration.matrix_flops_per_second.get(compute) if calibration else None
    return cluster.device.peak(compute) or measured


def step_interval(
    time: Time | None, facts: Facts, plan: Plan, cluster: Cluster, calibration: Calibration | None
) -> Interval | None:
    """Where the step's measured time may lie."""
    if time is None:
        return None
    return time_interval(
        time,
        cluster.device,
        pipeline=plan.layout.pipeline,
        mixture=any(part.expert_parameters for part in facts.parts),
        calibrated=calibration is not None,
    )


def memory_limit(plan: Plan, cluster: Cluster) -> int | None:
    """Bytes that one process may use: the device's memory, or the plan's own limit."""
    whole = cluster.memory_bytes_per_device
    usable = None if whole is None else round(whole * USABLE)
    limits = [limit for limit in (usable, plan.memory_bytes) if limit is not None]
    return min(limits) if limits else None


def fits(memory: Memory, limit: int | None, host_bytes: int, cluster: Cluster) -> bool:
    """Whether device and host memory suffice; memory of unknown size counts as enough."""
    if limit is not None and memory.peak_bytes > limit:
        return False
    return host_fits(host_bytes, cluster)


def host_fits(host_bytes: int, cluster: Cluster) -> bool:
    host = cluster.host_memory_bytes
    return host is None or host_bytes * cluster.devices_per_node <= host


def memory_reasons(
    memory: Memory, limit: int | None, host_bytes: int, cluster: Cluster
) -> tuple[str, ...]:
    reasons = []
    if limit is not None and memory.peak_bytes > limit:
        owner, size = memory.largest_owner()
        reasons.append(
            f"memory: needs {memory.peak_bytes / GIB:.1f} GiB and {limit / GIB:.1f} can be used. "
            f"Largest owner: {owner}, {size / GIB:.1f} GiB."
        )
    elif limit is not None and memory.peak_bytes > MARGIN * limit:
        spare = (limit - memory.peak_bytes) / GIB
        reasons.append(f"memory: {spare:.1f} GiB to spare; an allocator this full may stall.")
    host, every = cluster.host_memory_bytes, host_bytes * cluster.devices_per_node
    if host is not None and every > host:
        reasons.append(f"host memory: a node needs {every / GIB:.0f} GiB and has {host / GIB:.0f}.")
    if host is None and host_bytes:
        reasons.append(f"host memory: a node needs {every / GIB:.0f} GiB; its size is not stated.")
    return tuple(reasons)
