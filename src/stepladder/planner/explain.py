"""Explaining a search: why the best plan wins, why each other family loses, what more would buy.

A family is the kind of parallelism that a plan uses: its ZeRO stage, and whether it also uses
tensor, pipeline or context parallelism. It is represented by its best plan.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import gcd

from stepladder.hardware import Cluster
from stepladder.plan import Layout, Plan
from stepladder.plan.precision import FP8
from stepladder.record import Forecast, Time
from stepladder.workload import Facts

from .forecast import forecast
from .search import search
from .search_result import GIB, Choices, RankedPlan, RejectedPlan

DATA_RUNGS = ("ddp", "zero1", "zero2", "zero3")
CUTTING = ("tensor", "pipeline", "context", "experts")  # axes that a family is named after


@dataclass(frozen=True, slots=True)
class LosingFamily:
    """One family's best plan, and why it is not the best of all."""

    family: str
    plan: Plan
    reason: str
    slower: float | None = None  # by this share of the best plan's step; None: does not fit


@dataclass(frozen=True, slots=True)
class Explanation:
    why: tuple[str, ...]
    families: tuple[LosingFamily, ...]  # fastest first, then those that do not fit
    next_rungs: tuple[str, ...]


def explain(choices: Choices) -> Explanation:
    """Compare the best plan with the best of every other family and with its own next rungs."""
    best = choices.best
    own = forecast(choices.facts, best.plan, choices.cluster, choices.calibration)
    return Explanation(
        tuple(why(own)), tuple(losing_families(choices, best, own)), tuple(next_rungs(choices, own))
    )


def family_of(plan: Plan) -> str:
    layout = plan.layout
    words = ["one device"] if layout.num_ranks == 1 else [data_rung(layout, plan.zero)]
    words += [axis for axis in CUTTING if getattr(layout, axis) > 1]
    words += ["offload"] if plan.offload else []
    return " + ".join(word for word in words if word)


def data_rung(layout: Layout, zero: int) -> str:
    if zero == 0:
        return "ddp" if layout.replicate > 1 else ""
    return "hsdp" if layout.replicate > 1 else DATA_RUNGS[zero]


def why(best: Forecast) -> list[str]:
    lines = []
    if best.time is not None:
        shares = sorted(best.time.by_cause().items(), key=lambda item: -item[1])
        total = best.time.step_seconds
        parts = [f"{cause} {spent / total:.0%}" for cause, spent in shares if spent / total > 0.005]
        lines.append(f"A step takes {total:.3g} s: {', '.join(parts)}.")
    owners = sorted(best.memory.by_owner().items(), key=lambda item: -item[1])[:3]
    sizes = ", ".join(f"{owner} {size / GIB:.1f}" for owner, size in owners)
    limit = best.memory_limit_bytes
    room = f" of {limit / GIB:.1f} GiB that can be used" if limit else " GiB"
    lines.append(f"The fullest rank needs {best.memory.peak_bytes / GIB:.1f}{room}: {sizes}.")
    return lines


def losing_families(choices: Choices, best: RankedPlan, own: Forecast) -> list[LosingFamily]:
    fastest: dict[str, RankedPlan] = {}
    for choice in choices.ranked:
        fastest.setdefault(family_of(choice.plan), choice)
    fastest.pop(family_of(best.plan), None)
    fit = [slower(choices, name, choice, best, own) for name, choice in fastest.items()]
    known = {family_of(best.plan), *fastest}
    lacking = [each for each in choices.rejected if family_of(each.plan) not in known]
    return fit + list(does_not_fit(lacking))


def slower(
    choices: Choices, family: str, choice: RankedPlan, best: RankedPlan, own: Forecast
) -> LosingFamily:
    """Say by how much, and which cause grew most."""
    share = choice.seconds / best.seconds - 1
    other = forecast(choices.facts, choice.plan, choices.cluster, choices.calibration)
    if own.time is None or other.time is None:
        return LosingFamily(family, choice.plan, "slower by the count of its work", share)
    return LosingFamily(family, choice.plan, largest_increase(own.time, other.time), share)


def largest_increase(best: Time, other: Time) -> str:
    cause, extra = max((other - best).items(), key=lambda item: item[1])
    return f"{cause.replace('_', ' ')} takes {extra:.3g} s longer" if extra > 0 else "as fast"


def does_not_fit(rejected: Iterable[RejectedPlan]) -> Iterable[LosingFamily]:
    least: dict[str, RejectedPlan] = {}
    for each in rejected:
        family = family_of(each.plan)
        known = least.get(family)
        if known is None or (each.peak_bytes or 2**62) < (known.peak_bytes or 2**62):
            least[family] = each
    return (LosingFamily(family, each.plan, each.reason) for family, each in least.items())


def next_rungs(choices: Choices, own: Forecast) -> list[str]:
    """What the next step up would buy: fewer bits, more devices."""
    if own.time is None:
        return []
    lines = []
    plan, cluster, facts = choices.best.plan, choices.cluster, choices.facts
    if cluster.device.peak("fp8") and plan.precision.compute != "fp8":
        lines += gain("fp8", own, best_of(choices, cluster, replace(plan, precision=FP8)))
    twice = replace(cluster, num_nodes=2 * cluster.num_nodes)
    lines += gain(f"{twice.num_devices} devices", own, best_of(choices, twice, plan))
    lines += spread_experts(facts, plan, own, cluster)
    if plan.recompute.kind != "none" and facts.num_blocks:
        without = forecast(facts, replace(plan, recompute=type(plan.recompute)()), cluster)
        more = without.memory.peak_bytes - own.memory.peak_bytes
        lines += [
            f"{line}, and needs {more / GIB:.0f} GiB more"
            for line in gain("recompute=none", own, without)
        ]
    return lines


def spread_experts(facts: Facts, plan: Plan, own: Forecast, cluster: Cluster) -> list[str]:
    """What the same plan would take with its experts spread over ranks."""
    counts = {m.experts for part in facts.parts for m in part.matmuls if m.experts > 1}
    layout = plan.layout
    if not counts or layout.tensor * layout.experts > 1:
        return []
    axis = "shard" if plan.zero else "replicate"
    ways = gcd(*counts, getattr(layout, axis), cluster.devices_per_node)
    if ways == 1:
        return []
    spread = replace(layout, **{axis: getattr(layout, axis) // ways}, experts=ways)
    other = forecast(facts, replace(plan, layout=spread), cluster)
    if other.time is None or own.time is None:
        return []
    seconds, before = other.time.step_seconds, own.time.step_seconds
    needs = other.memory.peak_bytes / GIB
    return [f"experts={ways}: {before / seconds:.2f} times as fast, with {needs:.0f} GiB"]


def best_of(choices: Choices, cluster: Cluster, like: Plan) -> Forecast | None:
    """The best forecast with one thing changed, everything else searched again."""
    start = replace(like, layout=Layout(), zero=0)
    found = search(choices.facts, cluster, batch=choices.batch, start=start)
    return found.forecasts[0] if found.forecasts else None


def gain(name: str, own: Forecast, other: Forecast | None) -> list[str]:
    if other is None or other.time is None or own.time is None:
        return []
    if other.time.step_seconds >= own.time.step_seconds:  # small models gain nothing by some
        return []
    return [
        f"{name}: a step in {other.time.step_seconds:.3g} s, "
        f"{own.time.step_seconds / other.time.step_seconds:.2f} times as fast"
    ]
