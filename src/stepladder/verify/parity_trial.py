"""Whether a plan computes what one device computes: two runs from the same weights, one verdict.

The plain run has the plan's precision, micro-batch and optimizer and nothing else of it. Both read
the same global batches by the same arithmetic that any run uses, so a wrong share of the data is
found as well as a wrong gradient. Three numbers are compared: every step's loss, every step's
gradient norm, and the parameters at the end as a share of how far the plain run moved them.

Plain SGD without clipping is the judge. Adam divides a gradient by its own size and clipping by
the norm, so both forgive a gradient that is a constant factor wrong; they are compared as well, by
losses and norms, because they are what people run. Adam's parameters are shown and not judged:
where a gradient is zero but for rounding (a key's bias), Adam makes a whole step of the rounding.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from stepladder.data import SampleOrder, load_batch
from stepladder.errors import NonFinite, PlanError, StepladderError
from stepladder.launch import Ranks
from stepladder.measure import measure_state
from stepladder.plan import Batch, Layout, Optimizer, Plan
from stepladder.rungs.data_parallel.batch_norm import batch_norms
from stepladder.train import Run, climb, fit

from .parity_verdict import Learned, Plain, Sameness, judge
from .subjects import Subject

SGD, ADAMW = "sgd lr=0.1", "adamw lr=1e-3 clip=0.1"  # so low that it bites
MICRO, ROWS = 2, 16  # rows of a pass and of a global batch, where the plan leaves them open
OPEN_WAYS = 2  # of an axis given as the rest


@dataclass(frozen=True, slots=True)
class Course:
    """What one run does; every rank of it is given the same."""

    subject: Subject
    plan: Plan  # settled, with its optimizer
    steps: int
    device: str = "cpu"
    name: str = ""  # the plan as it was asked for


def compare_plans(
    subject: Subject,
    plans: Sequence[str | Plan],
    *,
    optimizers: Sequence[str] = (SGD, ADAMW),
    steps: int = 10,
    device: str = "cpu",
) -> Iterator[Sameness]:
    """One finding a plan and optimizer, as each is done; a plan that is refused says why."""
    courses = [
        make_course(subject, plan, optimizer, steps=steps, device=device)
        for plan in plans
        for optimizer in optimizers
    ]
    yield from compare_courses(courses)


def compare_courses(courses: Sequence[Course]) -> Iterator[Sameness]:
    """One finding a course, as each is done, all on the same processes."""
    ranks = max(course.plan.layout.num_ranks for course in courses)
    with Ranks(ranks) as pool, tempfile.TemporaryDirectory(prefix="parity-") as folder:
        known: dict[str, Plain] = {}
        for course in courses:
            yield compare_course(pool, course, Path(folder), known)


def make_course(
    subject: Subject, plan: str | Plan, optimizer: str, *, steps: int = 10, device: str = "cpu"
) -> Course:
    """A course from a plan of which some numbers may be open."""
    asked = Plan.parse(plan) if isinstance(plan, str) else plan
    whole = settled(asked, Optimizer.parse(optimizer))
    return Course(subject, whole, steps, device, str(replace(asked, layout=whole.layout)))


def settled(plan: Plan, optimizer: Optimizer) -> Plan:
    """The plan with every number filled in; an axis given as the rest is two wide."""
    if plan.compress.kind == "powersgd":
        raise PlanError(
            "compress",
            f"{plan.compress} sends less than the gradients, so it cannot compute the same",
            "Leave it out; 'stepladder bench compression' shows what it costs and brings.",
        )
    layout = laid_out(plan.layout)
    batch, micro = plan.batch, plan.batch.micro or MICRO
    rows = max(ROWS, micro * layout.data_ranks)
    if batch.micro_batches and not batch.sequences:
        rows = micro * batch.micro_batches * layout.data_ranks
    filled = Batch(batch.sequences or rows, micro, batch.micro_batches).settle(layout.data_ranks)
    return replace(plan, layout=layout, batch=filled, optimizer=optimizer)


def laid_out(layout: Layout) -> Layout:
    """The layout with an axis given as the rest two wide."""
    known = math.prod(ways for ways in layout.shape if ways > 0)
    return layout.settle(known * (OPEN_WAYS if min(layout.shape) < 0 else 1))


def plain_of(course: Course) -> Plan:
    """The same mathematics on one device: its precision, batch and optimizer."""
    plan, micro = course.plan, course.plan.batch.micro
    if micro is not None and plan.batchnorm == "sync" and batch_norms(course.subject.made()[0]):
        micro *= plan.layout.data_ranks  # batch statistics are over all ranks' rows
    batch = Batch(plan.batch.sequences, micro)
    return Plan(plan.precision, plan.keep, Layout(), batch=batch, optimizer=plan.optimizer)


def compare_course(
    pool: Ranks,
    course: Course,
    folder: Path,
    known: dict[str, Plain],
    learn: Callable[[Course, Path], Learned] | None = None,
) -> Sameness:
    """Run a course on the ranks it needs, and the plain one here unless it is known."""
    plan = course.plan
    key = str(plain_of(course))
    ranks = plan.layout.num_ranks
    shown = Sameness(course.name, str(plan.optimizer), ranks)
    try:
        if key not in known:
            known[key] = learn_plain(course, folder / f"{len(known)}.pt")
        found = pool.call(learn or learn_rank, course, known[key].weights, ranks=ranks)
    except Exception as error:  # of a module nobody has seen: one plan's end is not the others'
        ours = isinstance(error, StepladderError)
        problem = str(error) if ours else f"{type(error).__name__}: {error}"
        return replace(shown, problem=problem.splitlines()[0], refused=ours)
    return judge(shown, plan, known[key], found)


def learn_plain(course: Course, weights: Path) -> Plain:
    """The reference: what one device makes of the same weights and batches."""
    run, samples = start(replace(course, plan=plain_of(course)))
    first = whole_parameters(run)
    losses, norms = follow(run, samples, course.steps)
    last = whole_parameters(run)
    moved = math.sqrt(sum(squared_distance(last[name], first[name]) for name in last))
    if not moved:
        raise NonFinite(
            "optimizer",
            f"{course.plan.optimizer} moved no parameter in {course.steps} steps",
            "Raise the learning rate: runs that stand still are the same whatever they compute.",
        )
    torch.save(last, weights)
    return Plain(losses, norms, weights, frozenset(last), moved)


def learn_rank(course: Course, weights: Path) -> Learned:
    """One rank's part of a course."""
    run, samples = start(course)
    losses, norms = follow(run, samples, course.steps)
    apart = distances(run, weights)
    with run.batches(samples, course.plan.batch.sequences, workers=0) as feed:
        return Learned(losses, norms, apart, measure_state(run, next(feed)))


def start(course: Course) -> tuple[Run, Any]:
    module, samples, loss = course.subject.made()
    sample = load_batch(samples, SampleOrder(len(samples)), np.arange(course.plan.batch.micro or 1))
    run = climb(module, loss=loss, plan=course.plan, sample=sample, device=course.device)
    return run, samples


def follow(run: Run, samples: Any, steps: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Losses and gradient norms of so many steps."""
    with run.batches(samples, run.plan.batch.sequences, workers=0) as feed:
        reports = [pending.read() for pending in islice(fit(run, feed), steps)]
    return tuple(r.loss for r in reports), tuple(r.grad_norm for r in reports)


@torch.no_grad()
def whole_parameters(run: Run) -> dict[str, torch.Tensor]:
    """Every parameter under every name it has: a tied one may live twice where it is cut."""
    named = run.module.named_parameters(remove_duplicate=False)
    return {name: whole(parameter).detach().cpu().clone() for name, parameter in named}


def whole(parameter: torch.Tensor) -> torch.Tensor:
    """All of a parameter, wherever its parts are.

    Over gloo by way of the host: torch 2.11 dies where it gathers straight from a GPU there.
    """
    if not isinstance(parameter, DTensor):
        return parameter
    by_host = dist.get_backend() == "gloo"
    return (parameter.detach().cpu() if by_host else parameter).full_tensor()  # type: ignore[attr-defined]


@torch.no_grad()
def distances(run: Run, weights: Path) -> dict[str, float]:
    """How far each parameter this rank can put together lies from the plain run's, squared."""
    expected = torch.load(weights, mmap=True, weights_only=True)
    named = run.module.named_parameters(remove_duplicate=False)
    return {name: squared_distance(whole(p).cpu(), expected[name]) for name, p in named}


def squared_distance(one: torch.Tensor, other: torch.Tensor) -> float:
    return (one.double() - other.double()).square().sum().item()
