"""Accepting a workload, a plan or a cluster as text."""

from __future__ import annotations

from stepladder.errors import PlanError, require_count, require_type
from stepladder.hardware import Cluster
from stepladder.plan import Plan
from stepladder.record import Calibration
from stepladder.workload import Facts, find_facts


def facts_of(given: Facts | str, sequence: int | None = None) -> Facts:
    if isinstance(given, str):
        return find_facts(given, sequence)
    if not isinstance(given, Facts):
        raise PlanError(
            "model",
            f"a {type(given).__name__} is neither a name nor the facts of a workload",
            "Give sl.describe(module, sample=batch).",
        )
    return given


def plan_of(given: Plan | str) -> Plan:
    require_type("plan", given, (Plan, str), "Write words such as 'bf16 zero3', or give a Plan.")
    return Plan.parse(given) if isinstance(given, str) else given


def cluster_of(given: Cluster | str) -> Cluster:
    require_type("cluster", given, (Cluster, str), "Write one, such as '8 x H100-80GB'.")
    return Cluster.parse(given) if isinstance(given, str) else given


def check_batch(batch: int | None) -> None:
    if batch is not None:
        require_count("batch", batch, "a number of sequences")


def check_calibration(given: Calibration | None) -> None:
    kinds = (Calibration, type(None))
    require_type("calibration", given, kinds, "Give Calibration.load(FILE), or none.")
