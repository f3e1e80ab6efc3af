"""Checking a plan against the legality rules, for a workload on a cluster."""

from __future__ import annotations

from functools import lru_cache

from stepladder.errors import PlanError
from stepladder.hardware import Cluster, Device
from stepladder.plan import Plan, SettledPlan
from stepladder.plan.settled.limits import DeviceLimits, ModelLimits
from stepladder.plan.settled.settle import legality_problems, settle
from stepladder.workload import Facts, Part


def check_plan(facts: Facts, plan: Plan, cluster: Cluster) -> Plan:
    """Settle the plan for the cluster, or raise every problem it has."""
    model, device = model_limits(facts), device_limits(cluster)
    return settle(plan, cluster.num_devices, model=model, device=device).plan


def plan_problems(
    facts: Facts, plan: Plan, cluster: Cluster, *, trial: bool = False
) -> list[PlanError]:
    """Every rule that the plan breaks.

    Args:
        trial: the plan is about to be tried out here. On a processor offloading has nowhere to go
            to, which is no reason not to try it.
    """
    device = device_limits(cluster, trial=trial)
    return legality_problems(plan, cluster.num_devices, model=model_limits(facts), device=device)


def settle_unchecked(plan: Plan, cluster: Cluster) -> SettledPlan:
    """The plan as a `SettledPlan` on this cluster, without checking that it is legal."""
    return SettledPlan(plan, kind_of(cluster.device))


@lru_cache(maxsize=64)
def model_limits(facts: Facts) -> ModelLimits:
    attentions = [part.attention for part in facts.parts if part.attention]
    return ModelLimits(
        name=facts.name,
        tokens=facts.tokens,
        num_blocks=facts.num_blocks,
        heads=tuple(attention.heads for attention in attentions),
        key_value_heads=tuple(attention.kv_heads for attention in attentions),
        # Without the exit: its classes may divide unevenly.
        cut_widths=tuple((p.name, width) for p in facts.parts[:-1] for width in cut_widths(p)),
        has_cuts=any(matrix.cut for part in facts.parts for matrix in part.matmuls),
        experts=tuple({m.experts for p in facts.parts for m in p.matmuls if m.experts > 1}),
        tied=bool(facts.tied_parameters),
        modules=any(m.experts > 1 and m.narrows for p in facts.parts for m in p.matmuls),
    )


def cut_widths(part: Part) -> list[int]:
    cut = [matrix for matrix in part.matmuls if matrix.cut]
    return [matrix.columns if matrix.cut == "columns" else matrix.inner for matrix in cut]


def device_limits(cluster: Cluster, *, trial: bool = False) -> DeviceLimits:
    device = cluster.device
    return DeviceLimits(
        name=str(device),
        kind=kind_of(device),
        computes=frozenset(device.peaks) or None,
        memory_bytes=cluster.memory_bytes_per_device,
        has_flash=not device.is_cpu,
        has_own_memory=trial or not device.is_cpu,
    )


def kind_of(device: Device) -> str:
    return "cpu" if device.is_cpu else "cuda"
