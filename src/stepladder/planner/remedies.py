"""What to change of a plan that does not fit: every remedy with the memory and time it would take.

A remedy changes the plan (smaller micro-batches, recomputation, sharding, fewer bits, offloading),
the workload (shorter sequences) or the cluster (more devices). Each is forecast like any plan. They
are ranked by what a token costs, in seconds of one device; fewer bytes of optimizer state are tried
from those that keep every bit (state=14) to those that round moments; weights in 16 bits, which
lose digits of every update, come after what does without. A plan that has just failed says more
than its forecast: what is forecast to need as much is not advised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from stepladder.hardware import Cluster
from stepladder.plan import Plan
from stepladder.record import Calibration, Forecast
from stepladder.workload import Facts

from .forecast import forecast
from .legality import plan_problems
from .plan_changes import (
    CHANGES,
    Case,
    Shorter,
    merged,
    more_devices,
    shorter_sequences,
    thinned,
)

SHOWN = 10
SAME = "the same results"
ROUNDED = {10: "moments in 16 bits", 7: "masters in 24 bits and moments in 8"}
GIB = 2**30
DERIVED = ("accumulate=", "batch=")  # words that follow from others
KINDS = (
    "accumulation", "recomputation", "sharding", "state", "precision", "offload", "sequence",
    "devices",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Remedy:
    """A change, and what is forecast with it."""

    words: str  # as they stand in a plan
    kinds: tuple[str, ...]
    case: Case
    forecast: Forecast
    fits: bool
    cost: float | None  # device seconds a token, over those of the plan that does not fit
    besides: str  # what else it changes

    def __str__(self) -> str:
        cost = f", {self.cost:.2f} × the time a token" if self.cost else ""
        same = "" if self.besides == SAME else f", {self.besides}"
        return f"{self.words} ({self.forecast.memory.peak_bytes / GIB:.1f} GiB{cost}{same})"

    @property
    def loses_digits(self) -> bool:
        """Whether weights are updated in 16 bits, which they were not."""
        plan = self.case.plan
        return "precision" in self.kinds and plan.precision.store != "float32"

    def to_dict(self) -> dict[str, Any]:
        """The change and its forecast as plain values."""
        time = self.forecast.time
        return {
            "change": self.words,
            "kinds": list(self.kinds),
            "plan": self.forecast.plan,
            "cluster": str(self.case.cluster),
            "tokens": self.case.facts.tokens,
            "peak_bytes": self.forecast.memory.peak_bytes,
            "fits": self.fits,
            "step_seconds": time and time.step_seconds,
            "cost_per_token": self.cost,
            "cluster_dollars_per_hour": self.forecast.cluster_dollars_per_hour,
            "besides": self.besides,
        }


@dataclass(frozen=True, slots=True)
class Failure:
    """A plan that ran out of memory although it was forecast to need less."""

    limit_bytes: int
    forecast_bytes: int  # of the plan that failed

    def needs(self, peak_bytes: int) -> float:
        """What a forecast peak comes to, where this one came to the limit at least."""
        return peak_bytes * max(1.0, self.limit_bytes / self.forecast_bytes)


def find_remedies(
    facts: Facts,
    plan: Plan,
    cluster: Cluster,
    calibration: Calibration | None = None,
    *,
    shorter: Shorter | None = None,
    failed: bool = False,
    forecast_plan: Callable[..., Forecast] = forecast,
) -> list[Remedy]:
    """Changes to a plan that does not fit, those that do first, by what a token costs.

    Args:
        shorter: makes the facts of shorter sequences; None: they are not advised.
        failed: the plan was run and its memory ran out, whatever its forecast says.
        forecast_plan: what tells memory and time, called as `forecast` is.
    """
    start = Case(facts, plan.settle(cluster.num_devices), cluster)
    adviser = Adviser(start, calibration, forecast_plan, failed)
    singles = [adviser.best(kind, adviser.alone(kind, shorter)) for kind in KINDS]
    found = [remedy for remedy in singles if remedy is not None]
    found = [each for each in found if each.fits or each.kinds[0] in CHANGES]
    offloads = any(each.fits and each.kinds[0] in CHANGES for each in found)
    found += adviser.together(offload=not offloads)
    found.sort(key=lambda each: (not each.fits, each.loses_digits, each.cost or 0.0))
    return found[:SHOWN]


class Adviser:
    """Forecasts changes to one plan."""

    def __init__(
        self,
        start: Case,
        calibration: Calibration | None,
        forecast_plan: Callable[..., Forecast],
        failed: bool,
    ) -> None:
        self.start, self.calibration, self.forecast_plan = start, calibration, forecast_plan
        self.base = self.tell(start)
        limit = self.base.memory_limit_bytes
        known = failed and limit is not None
        self.failure = Failure(limit or 0, self.base.memory.peak_bytes) if known else None

    def tell(self, case: Case) -> Forecast:
        return self.forecast_plan(case.facts, case.plan, case.cluster, self.calibration)

    def try_(self, kinds: tuple[str, ...], case: Case) -> Remedy | None:
        """The change with its forecast; None where no run could take it, or it saves nothing."""
        if plan_problems(case.facts, case.plan, case.cluster):
            return None
        found = self.tell(case)
        peak, limit = found.memory.peak_bytes, found.memory_limit_bytes
        if peak >= self.base.memory.peak_bytes:
            return None
        needs = self.failure.needs(peak) if self.failure else peak
        fits = found.fits and (limit is None or needs <= limit)
        before, after = cost_of(self.start, self.base), cost_of(case, found)
        cost = after / before if before and after else None
        words = change_words(self.start, case)
        return Remedy(words, kinds, case, found, fits, cost, self.besides(kinds, case, found))

    def besides(self, kinds: tuple[str, ...], case: Case, found: Forecast) -> str:
        narrowed = case.plan.precision != self.start.plan.precision
        said = state_besides(case.plan, narrowed=narrowed) if "state" in kinds else []
        return ", ".join([*said, *other_changes(kinds, case, found)]) or SAME

    def alone(self, kind: str, shorter: Shorter | None) -> Iterator[Case]:
        """The cases in which only this changes, from the least change on."""
        start = self.start
        if kind == "sequence":
            yield from shorter_sequences(start, shorter) if shorter else ()
        elif kind == "devices":
            yield from more_devices(start)
        else:
            for plan in CHANGES[kind](start.plan, start.cluster):
                yield replace(start, plan=plan)

    def best(self, kind: str, cases: Iterator[Case]) -> Remedy | None:
        """The cheapest that fits; else the one that saves most. More of a change costs more."""
        leanest: Remedy | None = None
        for case in cases:
            found = self.try_((kind,), case)
            if found is None:
                continue
            if found.fits and kind != "precision":
                return found
            peak = found.forecast.memory.peak_bytes
            if leanest is None or (found.fits, -peak) > (
                leanest.fits, -leanest.forecast.memory.peak_bytes,
            ):  # fmt: skip
                leanest = found
        return leanest

    def together(self, *, offload: bool) -> list[Remedy]:
        """The cheapest that fit of changes to the plan that go together."""
        plan, cluster = self.start.plan, self.start.cluster
        kinds = ["accumulation", "recomputation", "sharding", "precision"]
        kinds += ["state"] if plan.precision.masters else []  # else it changes results
        kinds += ["offload"] if offload else []
        choices = [thinned([None, *CHANGES[kind](plan, cluster)], kind) for kind in kinds]
        found = []
        for chosen in product(*choices):
            changed = tuple(kind for kind, one in zip(kinds, chosen) if one is not None)
            if len(changed) > 1:
                both = replace(self.start, plan=merged(plan, [one for one in chosen if one]))
                if (remedy := self.try_(changed, both)) and remedy.fits:
                    found.append(remedy)
        found.sort(key=lambda each: (each.loses_digits, each.cost or 0.0, len(each.kinds)))
        fewest = min((len(each.kinds) for each in found), default=0)
        least = [each for each in found if len(each.kinds) == fewest]
        return list({id(each): each for each in (*found[:2], *least[:2])}.values())


def change_words(start: Case, case: Case) -> str:
    """What is written otherwise in the plan, and beside it."""
    before = str(start.plan).split()
    words = [word for word in str(case.plan).split() if word not in before]
    words = [word for word in words if not word.startswith(DERIVED)]
    if case.facts.tokens != start.facts.tokens:
        words.append(f"sequence={case.facts.tokens}")
    if case.cluster != start.cluster:
        words.append(f"on {case.cluster.num_devices} devices")
    return " ".join(words)


def cost_of(case: Case, found: Forecast) -> float | None:
    """Seconds of one device for a token."""
    if found.time is None:
        return None
    return found.time.step_seconds * found.num_devices / (case.samples * case.facts.tokens)


def state_besides(plan: Plan, *, narrowed: bool) -> list[str]:
    """What fewer bytes of state change of the numbers; those of 14 are the same as of 16."""
    said = ["weights and gradients in bf16 beside fp32 masters"] if narrowed else []
    return said + ([ROUNDED[plan.state]] if plan.state in ROUNDED else [])


def other_changes(kinds: tuple[str, ...], case: Case, found: Forecast) -> list[str]:
    """What a remedy changes besides memory and time."""
    said = []
    if "precision" in kinds:
        pure = case.plan.precision.store != "float32"
        said.append("updates in 16 bits lose digits" if pure else "fewer digits")
    if "sequence" in kinds:
        said.append("the model sees shorter sequences")
    if "devices" in kinds:
        said.append(f"{case.cluster.num_devices} devices")
    if "offload" in kinds:
        said.append(f"{found.host_bytes / GIB:.1f} GiB of host memory")
    return said
