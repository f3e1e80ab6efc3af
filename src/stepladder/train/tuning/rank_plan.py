"""What `plan="auto"` chooses on several ranks.

Data parallelism where a whole copy fits on every rank, since it moves the least. Where it does not,
the fastest plan that fits by forecast; by memory alone where no speed of the device is known. A
module of the user's is only sharded: whether its blocks can be cut or put on other ranks shows when
it is climbed, and a choice must not be refused then.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from stepladder.hardware import Cluster
from stepladder.model import builtin_shape
from stepladder.plan import BatchSplit, Layout, Plan
from stepladder.plan.options import GIB
from stepladder.planner import forecast, search
from stepladder.planner.forecast import MARGIN
from stepladder.record import Calibration, Forecast
from stepladder.workload import Facts
from stepladder.world import Place

from .planner_inputs import cluster_for, facts_for, rows_of, speeds_for


def plan_for_ranks(
    device: torch.device,
    asked: Plan,
    place: Place,
    model: nn.Module | None,
    sample: Any,
    batch: int | None,
) -> tuple[Plan, str]:
    """The plan and its reason; raises where there is too little to go by.

    Args:
        asked: precision, optimizer and limits, without a layout.
        sample: what one rank learns from in a step.
        batch: samples of a step on all ranks; None: every rank has as many as the sample.
    """
    ranks, rows = place.num_ranks, rows_of(sample)
    size = batch or asked.batch.sequences or (rows and rows * ranks)
    if model is None or not size:
        raise LookupError("no batch was given to plan for")
    cluster, facts = cluster_for(device, place), facts_for(model, sample)
    calibration = speeds_for(device, place)
    each = -(-size // ranks)
    copies = replace(asked, layout=Layout(replicate=ranks), batch=BatchSplit(size, each, 1))
    said = forecast(facts, copies, cluster, calibration)
    if fits(said):
        copied = replace(asked, layout=Layout(replicate=-1))
        return copied, f"each of {ranks} ranks holds a whole copy: {needs(said)}"
    plan, chosen = sharded(
        facts, cluster, calibration, asked, size, builtin_shape(model) is not None
    )
    micro = plan.batch.micro if plan.batch.micro != each else None
    because = (
        f"a whole copy on each of {ranks} ranks would not fit ({needs(said)}); {needs(chosen)}"
    )
    return replace(plan, batch=BatchSplit(asked.batch.sequences, micro)), because


def sharded(
    facts: Facts,
    cluster: Cluster,
    calibration: Calibration | None,
    asked: Plan,
    size: int,
    cuttable: bool,
) -> tuple[Plan, Forecast]:
    """The best plan of those that the module takes for certain, and its forecast."""
    found = search(facts, cluster, batch=size, start=asked, calibration=calibration)
    plans = [one.plan for one in found.ranked if cuttable or only_shards(one.plan)]
    if not plans:
        raise LookupError(f"no plan fits on {cluster} by forecast")
    timed = found.forecasts[0].time is not None
    plan = plans[0] if timed else min(plans, key=how_far_up)
    return plan, forecast(facts, plan, cluster, calibration)


def only_shards(plan: Plan) -> bool:
    layout = plan.layout
    return layout.tensor == layout.pipeline == layout.context == 1 and not plan.offload


def how_far_up(plan: Plan) -> tuple[int, bool, int]:
    """How much a plan exchanges and computes again."""
    return plan.zero, plan.recompute.kind != "none", plan.batch.micro_batches or 1


def fits(said: Forecast) -> bool:
    limit = said.memory_limit_bytes
    return said.fits and (limit is None or said.memory.peak_bytes < MARGIN * limit)


def needs(said: Forecast) -> str:
    limit = said.memory_limit_bytes
    of = f" of {limit / GIB:.3g}" if limit is not None else ""
    rate = said.tokens_per_second
    speed = f", {rate:,.0f} a second" if rate else ""
    return f"forecast {said.memory.peak_bytes / GIB:.3g}{of} GiB a rank{speed}"


def agree(plan: Plan, because: str) -> tuple[Plan, str]:
    """Rank 0's choice on all ranks: others may have measured other speeds."""
    said = [str(plan), because]
    dist.broadcast_object_list(said, src=0)
    return Plan.parse(said[0]), said[1]
