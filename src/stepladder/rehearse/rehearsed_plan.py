"""One plan on one cluster, rehearsed: for `plan --rehearse` and `sl.forecast(rehearse=True)`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from stepladder.errors import PlanError
from stepladder.hardware import Cluster
from stepladder.model import describe
from stepladder.plan import BatchSplit, Plan
from stepladder.plan.refit import spread
from stepladder.planner import check_plan, forecast
from stepladder.planner.parse_inputs import cluster_of, facts_of, plan_of
from stepladder.planner.remedies import find_remedies
from stepladder.record import Calibration, Forecast, Rehearsal
from stepladder.record.rehearsal import RehearsedChange
from stepladder.train.module_inputs import arranged_sample
from stepladder.workload import Facts

from .named_subject import RehearsalSubject, subject_of_name
from .rehearse_kinds import rehearse_kinds
from .rehearsed_changes import rehearse_changes
from .time.step_time import StepTime, rehearse_time


@dataclass(frozen=True, slots=True)
class RehearsedPlan:
    """What was rehearsed of a plan: one rank of each kind, the one that needs most first."""

    ranks: tuple[Rehearsal, ...]
    seconds: float  # that it took
    limit_bytes: int | None  # of what the allocator may reserve
    changes: tuple[RehearsedChange, ...] = ()  # where it does not fit: what frees memory
    time: StepTime | None = None  # None: of several devices, or of one whose speed is unknown

    @property
    def fits(self) -> bool:
        return self.limit_bytes is None or self.ranks[0].reserved_bytes <= self.limit_bytes

    def forecast(self, formula: Forecast) -> Forecast:
        """The formula's forecast with what was rehearsed in the formula's place."""
        most, limit = self.ranks[0], self.limit_bytes
        others = tuple(r for r in formula.reasons if not r.startswith("memory:"))
        short = () if limit is None or self.fits else (most.where_it_ends(limit),)
        return replace(
            formula,
            memory=replace(most.memory, context=formula.memory.context),
            fits=self.fits and not any(r.startswith("host memory:") for r in others),
            reasons=(*short, *others),
            time=self.time.time if self.time else formula.time,
            step_seconds=self.time.interval if self.time else formula.step_seconds,
            peak_bytes=None,
            rehearsal=most,
            changes=self.changes,
        )


def rehearse_plan(
    subject: RehearsalSubject,
    facts: Facts,
    cluster: Cluster,
    plan: Plan,
    formula: Forecast,
    calibration: Calibration | None = None,
) -> RehearsedPlan:
    """Rehearse the plan on as many ranks as the cluster has devices.

    Args:
        formula: of the same plan there.
    """
    began = time.perf_counter()
    limit = formula.memory_limit_bytes
    limit = None if limit is None else limit - formula.memory.context
    found = rehearse_kinds(
        subject.module, plan, sample=subject.sample, loss=subject.loss, ranks=cluster.num_devices,
        device="cpu" if cluster.device.is_cpu else "cuda",
    )  # fmt: skip
    spent = None
    if cluster.num_devices == 1 and formula.time is not None:
        spent = rehearse_time(
            subject.module, plan, sample=subject.sample, loss=subject.loss, on=cluster,
            calibration=calibration,
        )  # fmt: skip
    changes: list[RehearsedChange] = []
    if limit is not None and found[0].reserved_bytes > limit:
        words = changes_of(facts, cluster, plan)
        changes = rehearse_changes(subject, found[0], words, limit_bytes=limit)
    return RehearsedPlan(found, time.perf_counter() - began, limit, tuple(changes), spent)


def changes_of(facts: Facts, cluster: Cluster, plan: Plan) -> Iterator[tuple[str, Plan]]:
    """Changes to the plan alone, the cheapest by formula first."""
    for each in find_remedies(facts, plan, cluster, failed=True):
        if each.case.cluster == cluster and "offload" not in each.kinds:
            yield each.words, each.case.plan


def forecast_by_rehearsal(
    model: nn.Module | str,
    plan: Plan | str,
    cluster: Cluster | str,
    calibration: Calibration | None = None,
    *,
    sample: Any = None,
    loss: str | Callable[[Any, Any], torch.Tensor] | None = None,
    price: float | None = None,
) -> Forecast:
    """The forecast with its memory, and on one device its time, from the step itself.

    It is what `sl.forecast(..., rehearse=True)` returns.

    Args:
        model: a module, on the meta device too, which stays as it is; or a model's name.
        plan: where it names no batch, each data rank has the sample's rows.
        sample: a batch as `run.step` takes it; of a named model, its usual one.
        loss: as in `climb`.

    >>> import torch
    >>> from stepladder.rehearse import forecast_by_rehearsal
    >>> batch = torch.randn(8, 64), torch.randint(0, 16, (8,))
    >>> model = torch.nn.Linear(64, 16)
    >>> said = forecast_by_rehearsal(model, "bf16", "1 x H200", sample=batch, loss="cross_entropy")
    >>> said.fits, said.memory.parameters >= 4 * (64 * 16 + 16)
    (True, True)
    """
    where = cluster_of(cluster, price)
    subject, facts, rows = subject_of(model, sample, loss)
    asked = with_rows(spread(plan_of(plan), where.num_devices), where, rows)
    settled = check_plan(facts, asked, where)
    formula = forecast(facts, settled, where, calibration)
    return rehearse_plan(subject, facts, where, settled, formula, calibration).forecast(formula)


def subject_of(model: Any, sample: Any, loss: Any) -> tuple[RehearsalSubject, Facts, int]:
    """What is rehearsed, its costs for the formulas, and the sample's rows."""
    if isinstance(model, str):
        if sample is not None or loss is not None:
            field = "loss" if sample is None else "sample"
            problem = f"is for a module of your own, and {model} is known by its name"
            raise PlanError(field, problem, "Leave it out, or give the module.")
        facts = facts_of(model)
        return subject_of_name(model, facts.tokens), facts, 1
    if not isinstance(model, nn.Module):
        problem = f"a {type(model).__name__} has no step to rehearse"
        raise PlanError("model", problem, "Give the module with sample= and loss=, or a name.")
    batch = arranged_sample(sample, model, loss)
    if batch is None:
        problem = "is None, and a rehearsed step needs a batch"
        raise PlanError("sample", problem, "Give one, as run.step takes it: (inputs, targets).")
    return RehearsalSubject(model, sample, loss), describe(model, sample=batch), batch.num_rows


def with_rows(plan: Plan, cluster: Cluster, rows: int) -> Plan:
    """The plan with so many rows a data rank, where it names no batch."""
    if plan.batch != BatchSplit():
        return plan
    ranks = plan.layout.settle(cluster.num_devices).data_ranks
    return replace(plan, batch=BatchSplit(rows * ranks, rows, 1))
