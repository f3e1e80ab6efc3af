"""Whether a plan computes what one device computes: two runs from the same weights, one verdict.

The reference is a plain torch loop over whole batches (plain_loop.py), which has the plan's
precision and optimizer and nothing else of it, and shares no code with the engine. Both read the
same global batches, so a wrong share of the data is found as well as a wrong gradient. Compared are
every step's loss and gradient norm, and the parameters and buffers at the end as a share of how far
the plain loop moved them.

Plain SGD without clipping is the judge. Adam divides a gradient by its own size and clipping by
the norm, so both forgive a gradient that is a constant factor wrong; they are compared as well, by
losses and norms, because they are what people run. Adam's parameters are shown and not judged:
where a gradient is zero but for rounding (a key's bias), Adam makes a whole step of the rounding.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from stepladder.errors import StepladderError
from stepladder.launch import Ranks
from stepladder.measure import measure_state
from stepladder.train import Run, fit

from .course import DEPENDS, Course, start
from .parity_verdict import Learned, Plain, Sameness, judge
from .reference import distances, learn_plain, on_one_device, reference_key

SGD, ADAMW = "sgd lr=0.1", "adamw lr=1e-3 clip=0.1"  # so low that it bites


def compare_courses(courses: Sequence[Course]) -> Iterator[Sameness]:
    """One finding a course, as each is done, all on the same processes."""
    ranks = max(course.plan.layout.num_ranks for course in courses)
    with Ranks(ranks) as pool, tempfile.TemporaryDirectory(prefix="parity-") as folder:
        known: dict[str, Plain] = {}
        for course in courses:
            yield compare_course(pool, course, Path(folder), known)


def compare_course(
    pool: Ranks,
    course: Course,
    folder: Path,
    known: dict[str, Plain],
    learn: Callable[[Course, Path], Learned] | None = None,
) -> Sameness:
    """Run a course on the ranks it needs, and the plain loop here unless its result is known."""
    plan = course.plan
    key = reference_key(course)
    ranks = plan.layout.num_ranks
    shown = Sameness(course.name, str(plan.optimizer), ranks)
    try:
        if key not in known:
            known[key] = learn_reference(course, folder / f"{len(known)}.pt")
        found = pool.call(learn or learn_rank, course, known[key].weights, ranks=ranks)
    except Exception as error:  # of a module nobody has seen: one plan's end is not the others'
        ours = isinstance(error, StepladderError)
        problem = str(error) if ours else f"{type(error).__name__}: {error}"
        return replace(shown, problem=problem.splitlines()[0], refused=ours)
    return judge(shown, plan, known[key], found)


def learn_reference(course: Course, weights: Path) -> Plain:
    """The reference; where plain torch cannot run the module, our reason if we have one."""
    try:
        return learn_plain(course, weights)
    except StepladderError:
        raise
    except Exception:
        run, samples = start(replace(course, plan=on_one_device(course.plan)))
        follow(run, samples, 1)
        raise


def learn_rank(course: Course, weights: Path) -> Learned:
    """One rank's part of a course."""
    run, samples = start(course)
    losses, norms = follow(run, samples, course.steps)
    apart = distances(run, weights)
    said = tuple(line for line in (run.because, *run.events) if DEPENDS in line)
    with run.batches(samples, course.plan.batch.sequences, workers=0) as feed:
        return Learned(losses, norms, apart, measure_state(run, next(feed)), said)


def follow(run: Run, samples: Any, steps: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Losses and gradient norms of so many steps."""
    with run.batches(samples, run.plan.batch.sequences, workers=0) as feed:
        found = [(one.loss, one.grad_norm) for one in islice(fit(run, feed), steps)]
    return tuple(loss for loss, _ in found), tuple(norm for _, norm in found)
