"""`parity`, `resume` and `precision`: proofs for a caller's own module, each with a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.utils.data import Subset

from stepladder.data import batches
from stepladder.errors import DataError, PlanError, require_count, require_type
from stepladder.plan import Plan, Precision
from stepladder.train import climb, fit
from stepladder.train.checkpointing.rng_state import untouched

from .compare_precisions import Trained, compare
from .course import has_batch_statistics, make_course, optimizers_for
from .live_module import Loss, Model, fit_rows, live_subject, read_plans
from .parity_trial import ADAMW, SGD, compare_courses
from .resume_trial import RESUMED, STEPS_OF_A_LEG, check_journeys, compare_journeys, make_journey
from .subjects import Subject
from .verdict import ParityVerdict, PrecisionVerdict, ResumeVerdict

TRAINED = "adamw lr=1e-3"
HELD_OUT = 4  # of so many rows one is for validation


def parity(
    model: Model,
    plans: str | Plan | Sequence[str | Plan],
    batch: Any = None,
    *,
    loss: Loss = None,
    optimizer: str | Sequence[str] = (SGD, ADAMW),
    steps: int = 5,
    device: str = "cpu",
) -> ParityVerdict:
    """Whether plans compute what one device computes, for a module of your own.

    Trains a copy of the module on one device and under each plan, on as many local ranks as the
    plan needs, from the same weights on the same rows; compares losses, gradient norms and
    parameters. Dropout is turned off: it draws other numbers on every rank, as it should.

    Args:
        model: a module, a function that makes one, or the name of a built-in model.
        plans: such as ["zero3 shard=2", "tensor=2"]; an axis left open is two wide.
        batch: one global batch, as `run.step` takes it.
        loss: as in `climb`.
        optimizer: SGD judges gradients best; Adam is what people run. Both by default, and what a
            plan names itself for that plan.
        steps: of every run.
        device: "cpu", or "cuda" where there is a GPU for every rank.

    >>> import torch, stepladder as sl
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    >>> batch = torch.randn(8, 4), torch.randint(0, 2, (8,))
    >>> verdict = sl.verify.parity(
    ...     model, plans=["fp32 accumulate=2"], batch=batch, loss="cross_entropy", steps=2
    ... )
    >>> verdict.same, verdict.locate()
    (True, None)
    """
    require_count("steps", steps, "a number of steps")
    subject = live_subject(model, batch, loss)
    asked = read_plans(plans)
    optimizers = read_texts("optimizer", optimizer)
    with untouched(torch.device("cpu")):
        fitted = (
            asked
            if batch is None
            else fit_rows(asked, rows_in(subject), cut=not has_batch_statistics(subject))
        )
        courses = tuple(
            make_course(subject, plan, each, steps=steps, device=device)
            for plan in fitted
            for each in optimizers_for(plan, optimizers)
        )
        rows = tuple(compare_courses(courses))
    return ParityVerdict(subject.name, steps, rows, courses)


def resume(
    model: Model,
    plan: str | Plan = "fp32",
    batch: Any = None,
    *,
    then: str | Plan | Sequence[str | Plan] = (),
    loss: Loss = None,
    optimizer: str = RESUMED,
    steps: int | None = None,
    device: str = "cpu",
) -> ResumeVerdict:
    """Whether a run that is killed and resumed is the run that was never stopped.

    Trains a copy of the module undisturbed; trains another, kills a rank with SIGKILL in the middle
    of a step and goes on in new processes from the checkpoint. In the same plan everything must be
    the same to the last bit; in another one (`then`) the rows, and the losses but for rounding.

    Args:
        then: plans to resume in, one after another; nothing: the same plan.
        steps: of every run; None: four for each time it starts.
        model, batch, loss, optimizer, device: as in `parity`.

    >>> import torch, stepladder as sl
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    >>> batch = torch.randn(8, 4), torch.randint(0, 2, (8,))
    >>> verdict = sl.verify.resume(model, "fp32", batch, loss="cross_entropy")
    >>> verdict.rows[0].verdict
    'same bits'
    """
    if steps is not None:
        require_count("steps", steps, "a number of steps", least=0)
    chain = [*read_plans(plan), *read_plans(then, least=0)]
    same = all(one == chain[0] for one in chain)
    subject = live_subject(model, batch, loss, dropout=same)
    with untouched(torch.device("cpu")):
        fitted = chain if batch is None else fit_rows(chain, rows_in(subject))
        length = STEPS_OF_A_LEG * max(2, len(chain)) if steps is None else steps
        journey = make_journey(subject, fitted, optimizer=optimizer, steps=length, device=device)
        check_journeys([journey])
        rows = tuple(compare_journeys([journey]))
    return ResumeVerdict(subject.name, length, rows)


def precision(
    model: Model,
    batch: Any = None,
    *,
    other: str | Sequence[str] = "bf16",
    reference: str = "fp32",
    loss: Loss = None,
    validation: Any = None,
    optimizer: str = TRAINED,
    steps: int = 60,
    device: str = "auto",
) -> PrecisionVerdict:
    """Whether a precision trains as the reference does: the loss on rows neither run has seen.

    Args:
        other: one precision or several, each held against the reference.
        validation: a batch to judge by; None: every fourth row, which is then not trained on.
        model, batch, loss, optimizer, steps, device: as in `parity`; all runs are in this process.

    >>> import torch, stepladder as sl
    >>> model = torch.nn.Linear(4, 2)
    >>> batch = torch.randn(32, 4), torch.randint(0, 2, (32,))
    >>> verdict = sl.verify.precision(model, batch, loss="cross_entropy", steps=5, device="cpu")
    >>> verdict.same
    True
    """
    require_count("steps", steps, "a number of steps")
    subject = live_subject(model, batch, loss, dropout=True)
    held = None if validation is None else live_subject(model, validation, loss).made()[1]
    others = read_texts("other", other)
    base = Precision.parse(reference)
    with untouched(torch.device("cpu")):
        known: dict[Precision, Trained] = {}

        def train(precision: Precision) -> Trained:
            if precision not in known:
                known[precision] = trained(subject, held, precision, optimizer, steps, device)
            return known[precision]

        rows = tuple(compare(train, base, Precision.parse(each)) for each in others)
    return PrecisionVerdict(subject.name, steps, rows)


def read_texts(field: str, given: str | Sequence[str]) -> Sequence[str]:
    """One text or several."""
    each = [given] if isinstance(given, str) else given
    require_type(field, each, (list, tuple), "Write it as text, or give a list of texts.")
    if not each:
        raise PlanError(field, "an empty list names none", "Give one text or more.")
    for one in each:
        require_type(field, one, str, "Write it as text, or give a list of texts.")
    return each


def trained(
    subject: Subject, held: Any, precision: Precision, optimizer: str, steps: int, device: str
) -> Trained:
    """Losses of one run by step, and on the rows that are held out."""
    module, samples, loss = subject.made()
    count = len(samples)
    if held is None and count < HELD_OUT:
        problem = f"of {count} rows none is left to judge by: one in {HELD_OUT} is"
        raise DataError("batch", problem, f"Give {HELD_OUT} rows or more, or pass validation=.")
    out = np.arange(count) % HELD_OUT == HELD_OUT - 1
    learned = samples if held is not None else Subset(samples, np.flatnonzero(~out).tolist())
    judged = held if held is not None else Subset(samples, np.flatnonzero(out).tolist())
    plan = replace(Plan(), precision=precision)
    run = climb(
        module, loss=loss, optimizer=optimizer, plan=plan, device=device,
        nonfinite="skip",  # a run that breaks down is the finding, not an error
    )  # fmt: skip
    with run.batches(learned, min(len(learned), 16), workers=0) as feed:
        losses = [report.loss for report in fit(run, feed, steps=steps)]
    size = min(len(judged), 16)
    with batches(judged, size=size, shuffle=False, stop=len(judged), workers=0) as feed:
        return Trained(run.evaluate(islice(feed, len(judged))), tuple(losses))


def rows_in(subject: Subject) -> int:
    return len(subject.made()[1])
