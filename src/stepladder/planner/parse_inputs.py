"""Accepting a workload, a plan or a cluster as text."""

from __future__ import annotations

from stepladder.errors import PlanError
from stepladder.hardware import Cluster
from stepladder.plan import Plan
from stepladder.workload import Facts, find_facts


def facts_of(given: Facts | str) -> Facts:
    return find_facts(given) if isinstance(given, str) else given


def plan_of(given: Plan | str) -> Plan:
    return Plan.parse(given) if isinstance(given, str) else given


def cluster_of(given: Cluster | str) -> Cluster:
    return Cluster.parse(given) if isinstance(given, str) else given


def check_batch(batch: int | None) -> None:
    if batch is not None and batch < 1:
        raise PlanError("batch", f"{batch} is not a number of sequences", "Use 1 or more.")
