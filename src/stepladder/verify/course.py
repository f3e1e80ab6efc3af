"""A course: what one run of a comparison does, with every number of its plan filled in."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from stepladder.data import SampleOrder, load_batch
from stepladder.errors import PlanError
from stepladder.plan import BatchSplit, Layout, Optimizer, Plan
from stepladder.rungs.data_parallel.batch_norm import batch_norms
from stepladder.train import Run, climb
from stepladder.world import pick_device

from .subjects import Subject

MICRO, ROWS = 2, 16  # rows of a micro-batch and of a global batch, where the plan leaves them open
DEPENDS = "results depend on"  # in what a run says of a plan that cannot compute the same
OPEN_WAYS = 2  # of an axis given as the rest


@dataclass(frozen=True, slots=True)
class Course:
    """What one run does; every rank of it is given the same."""

    subject: Subject
    plan: Plan  # settled, with its optimizer
    steps: int
    device: str = "cpu"
    name: str = ""  # the plan as it was asked for


def make_course(
    subject: Subject, plan: str | Plan, optimizer: str, *, steps: int = 10, device: str = "cpu"
) -> Course:
    """A course from a plan of which some numbers may be open."""
    asked = Plan.parse(plan) if isinstance(plan, str) else plan
    pick_device(device)  # refused here, and not once on every rank
    whole = settled(asked, Optimizer.parse(optimizer), cut=not has_batch_statistics(subject))
    return Course(subject, whole, steps, device, str(replace(asked, layout=whole.layout)))


def optimizers_for(plan: Plan, asked: Sequence[str]) -> Sequence[str]:
    """The optimizers to try a plan under: its own where it names one, else those that are asked."""
    return asked if plan.optimizer == Optimizer() else [str(plan.optimizer)]


def named_optimizer(plans: Sequence[Plan]) -> Optimizer | None:
    """What the plans name themselves."""
    named = list(dict.fromkeys(p.optimizer for p in plans if p.optimizer != Optimizer()))
    if len(named) > 1:
        problem = f"the plans name '{named[0]}' and '{named[1]}'; a run resumes with the one it had"
        raise PlanError("optimizer", problem, "Name one of them.")
    return named[0] if named else None


def settled(plan: Plan, optimizer: Optimizer, *, cut: bool = True) -> Plan:
    """The plan with every number filled in; an axis given as the rest is two wide.

    Args:
        cut: into several micro-batches, where the plan leaves their size open.
    """
    if plan.compress.kind == "powersgd":
        raise PlanError(
            "compress",
            f"{plan.compress} sends less than the gradients, so it cannot compute the same",
            "Leave it out; 'stepladder bench compression' shows what it costs and brings.",
        )
    layout = laid_out(plan.layout)
    if plan.exact.slices:
        return replace(plan.settle(layout.num_ranks), optimizer=optimizer)
    batch, micro = plan.batch, plan.batch.micro or MICRO
    rows = max(ROWS, micro * layout.data_ranks)
    if not (cut or batch.micro or batch.micro_batches or layout.pipeline > 1):
        micro = max(1, (batch.sequences or rows) // layout.data_ranks)
    if batch.micro_batches and not batch.sequences:
        rows = micro * batch.micro_batches * layout.data_ranks
    filled = BatchSplit(batch.sequences or rows, micro, batch.micro_batches).settle(
        layout.data_ranks
    )
    return replace(plan, layout=layout, batch=filled, optimizer=optimizer)


def fill_batch(plan: Plan, rows: int) -> BatchSplit:
    """A batch of so many rows, cut as the plan says."""
    if plan.exact.slices:
        return BatchSplit(rows).cut(plan.exact.slices).settle(plan.layout.data_ranks)
    batch = replace(plan.batch, sequences=rows, micro=plan.batch.micro or MICRO)
    return batch.settle(plan.layout.data_ranks)


def laid_out(layout: Layout) -> Layout:
    """The layout with an axis given as the rest two wide."""
    known = math.prod(ways for ways in layout.shape if ways > 0)
    return layout.settle(known * (OPEN_WAYS if min(layout.shape) < 0 else 1))


def has_batch_statistics(subject: Subject) -> bool:
    """Whether results depend on the micro-batch: then only the user decides to cut a batch."""
    module = subject.made()[0]
    whole = not module.training  # then a run puts all of it into training
    return any(whole or norm.training for norm in batch_norms(module))


def start(course: Course) -> tuple[Run, Any]:
    module, samples, loss = course.subject.made()
    sample = load_batch(samples, SampleOrder(len(samples)), np.arange(course.plan.batch.micro or 1))
    run = climb(module, loss=loss, plan=course.plan, sample=sample, device=course.device)
    return run, samples
