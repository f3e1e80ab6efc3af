"""Accepting a workload, a plan or a cluster as text."""

from __future__ import annotations

import math
from dataclasses import replace

from stepladder.errors import PlanError, require_count, require_type
from stepladder.hardware import Cluster
from stepladder.hardware.here import cluster_here, is_here
from stepladder.plan import Plan
from stepladder.record import Calibration
from stepladder.workload import Facts, find_facts

MOST_SEQUENCES = 2**30  # of one step: beyond it a number is a slip of the keyboard
GIVEN = "as given"  # the source of a price that somebody states


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


def cluster_of(given: Cluster | str, price: float | None = None) -> Cluster:
    """The cluster, at this price of a device-hour where one is given."""
    require_type("cluster", given, (Cluster, str), "Write one, such as '8 x H100-80GB'.")
    if isinstance(given, str):
        given = cluster_here(given) if is_here(given) else Cluster.parse(given)
    return at_price(given, price)


def at_price(cluster: Cluster, price: float | None) -> Cluster:
    """The cluster with each device rented at so many dollars an hour; None: of the table."""
    if price is None:
        return cluster
    require_type("price", price, (int, float), "Give the dollars of one device for one hour: 2.5.")
    if isinstance(price, bool) or not 0 <= price < math.inf:
        problem = f"{price} is not a number of dollars for one device and hour"
        raise PlanError("price", problem, "Use 2.5, or leave it out for the table's.")
    device = replace(cluster.device, dollars_per_hour=float(price), price_source=GIVEN)
    return replace(cluster, device=device)


def check_batch(batch: int | None) -> None:
    if batch is not None:
        require_count("batch", batch, "a number of sequences")
        if batch > MOST_SEQUENCES:
            problem = f"{batch:,} sequences are more than any step has"
            raise PlanError("batch", problem, f"Use {MOST_SEQUENCES:,} or fewer.")


def check_calibration(given: Calibration | None) -> None:
    kinds = (Calibration, type(None))
    require_type("calibration", given, kinds, "Give Calibration.load(FILE), or none.")
