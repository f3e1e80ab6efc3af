"""`plan`: the best plan for a model on a cluster, as `stepladder plan` finds it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from stepladder.errors import PlanError
from stepladder.hardware import Cluster
from stepladder.hardware.here import is_here
from stepladder.plan import BatchSplit, Plan
from stepladder.record import Calibration, Forecast, load_calibration
from stepladder.services import service
from stepladder.workload import Facts

from .explain import Explanation, explain
from .forecast import forecast
from .legality import check_plan
from .parse_inputs import check_batch, cluster_of, facts_of, plan_of
from .remedies import Remedy, find_remedies
from .search import search
from .search_result import GIB, Choices


@dataclass(frozen=True, slots=True)
class PlanResult:
    """A plan for a model on a cluster, what it would do, and why the others lose."""

    plan: Plan  # the fastest that fits, or the one that was asked about
    forecast: Forecast
    choices: Choices | None = None  # every plan that was tried; None where one was given
    explanation: Explanation | None = None
    remedies: tuple[Remedy, ...] = ()  # where a plan that was given does not fit: what would

    @property
    def fits(self) -> bool:
        """Whether the plan fits the devices' memory and breaks no rule."""
        return self.forecast.fits

    def to_dict(self) -> dict[str, Any]:
        """The plan and its forecast as plain values."""
        why = self.explanation.why if self.explanation else ()
        remedies = [remedy.to_dict() for remedy in self.remedies]
        said = {"why": list(why), "remedies": remedies}
        return {"plan": str(self.plan), **self.forecast.to_dict(), **said}

    def __str__(self) -> str:
        said, time = self.forecast, self.forecast.time
        lines = [said.plan, f"memory {said.memory.peak_bytes / GIB:.1f} GiB a device"]
        if time is not None and said.tokens_per_second is not None:
            mfu = "unknown" if said.mfu is None else f"{said.mfu:.1%}"
            rate = f"{said.tokens_per_second:,.0f} {said.unit}/s"
            lines.append(f"step {time.step_seconds:.3g} s, {rate}, MFU {mfu}")
        if said.cluster_dollars_per_hour is not None:
            lines.append(f"{said.figures()['price']} ({said.price_source})")
        why = self.explanation.why if self.explanation else ()
        fitting = [f"would fit: {remedy}" for remedy in self.remedies if remedy.fits]
        return "\n".join([*lines, *said.reasons, *why, *fitting])


def plan(
    model: Facts | str,
    on: Cluster | str,
    *,
    plan: Plan | str | None = None,
    batch: int | None = None,
    sequence: int | None = None,
    calibration: Calibration | str | Path | None = None,
    price: float | None = None,
) -> PlanResult:
    """The fastest plan that fits, with its forecast and why the others lose; no device is needed.

    Args:
        model: a preset, a shape, a config.json; or `sl.describe(module, sample=batch)`.
        on: a cluster, such as "8 x H100-80GB", "here" or "here x 2".
        plan: forecast this one instead of searching.
        batch: sequences of one step; None: usual for the model.
        sequence: tokens of a sequence; None: the model's own.
        calibration: what `stepladder calibrate` wrote, or "none"; None: of this user for such a
            device, and of this machine measured now, in seconds, where nobody has yet.
        price: dollars of one device for one hour; None: of the table.

    >>> import stepladder as sl
    >>> result = sl.plan("llama3.2-1b", on="8 x H100-80GB", batch=64)
    >>> result.fits, result.plan.layout.num_ranks
    (True, 8)
    >>> sl.plan("llama3-8b", on="1 x H100-80GB", plan="bf16 micro=1 batch=1").fits
    False
    """
    check_batch(batch)
    facts = facts_of(model, sequence)
    cluster = cluster_of(on, price)
    speeds = speeds_of(cluster, calibration, here=is_here(on))
    if plan is None:
        choices = search(facts, cluster, batch=batch, calibration=speeds)
        return PlanResult(choices.best.plan, choices.forecasts[0], choices, explain(choices))
    asked = plan_of(plan)
    if batch is not None:
        asked = replace(
            asked, batch=BatchSplit(batch, asked.batch.micro, asked.batch.micro_batches)
        )
    settled = check_plan(facts, asked, cluster)
    expected = forecast(facts, settled, cluster, speeds)
    shorter = None if isinstance(model, Facts) else partial(facts_of, model)
    remedies = (
        () if expected.fits else find_remedies(facts, settled, cluster, speeds, shorter=shorter)
    )
    return PlanResult(settled, expected, remedies=tuple(remedies))


def speeds_of(
    cluster: Cluster, given: Calibration | str | Path | None, *, here: bool
) -> Calibration | None:
    """What was measured: as given, in the file that was named, or by this user on such a device.

    Args:
        here: on this machine, which is measured in seconds where nobody has yet.
    """
    if given is None and here:
        found: Calibration | None = service("speeds_here")(ranks=cluster.devices_per_node)
        return found
    if given == "none":
        return None
    if given is None:
        return load_calibration(cluster.device.name)
    named = given if isinstance(given, Calibration) else Calibration.load(given)
    if named.device not in ("", cluster.device.name):
        problem = f"was measured on {named.device}, not {cluster.device}"
        raise PlanError("calibration", problem, "Name one that was measured there, or none.")
    return named
