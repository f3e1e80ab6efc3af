"""`profile`: what `stepladder profile` does with a recipe, as a function to call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepladder.errors import PlanError, require_count
from stepladder.job.opening.plan_optimizer import take_plan_optimizer
from stepladder.measure import MemoryTimeline, measure_fragmentation, record_timeline
from stepladder.plan import Plan, Recipe, read_recipe
from stepladder.plan.automatic import automatic_words
from stepladder.planner import forecast_moments
from stepladder.record import Forecast, Memory, Profile
from stepladder.train.profile_steps import SampledStep, suggestion_context

from .open_job import open_job
from .train_recipe import change, read_plan
from .training_job import TrainingJob

FINISH_SECONDS = 600  # for rank 0 to draw and print


@dataclass(frozen=True, slots=True)
class ProfileResult:
    """Where a step's time went, and its memory where that was asked for."""

    profile: Profile
    forecast: Forecast | None
    folder: Path  # of traces and snapshots
    memory: MemoryTimeline | None = None
    forecast_moments: tuple[tuple[str, Memory], ...] = ()  # the planner's picture of the same step
    fragmentation: str = ""  # of a GPU's allocator


def profile(
    recipe: Recipe | str | Path | None = None,
    *,
    settings: Sequence[str] = (),
    plan: Plan | str | None = None,
    steps: int = 4,
    memory: bool = False,
    show: Callable[[ProfileResult], None] | None = None,
) -> ProfileResult:
    """Take a few real steps of a recipe under the profiler, as the one rank this process is.

    A run of your own has the same: `run.profile(batches)`.

    Args:
        recipe: a file, a `Recipe`, or nothing for the built-in run.
        settings: keys of the recipe to change, such as ["--train.batch", "4"].
        plan: instead of the recipe's.
        steps: how many are profiled; as many are timed without a profiler.
        memory: also record memory over one step, by owner.
        show: called with the result on rank 0, while the other ranks wait.

    >>> import tempfile, stepladder as sl
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     small = ["--model.name", "gpt-tiny", "--model.sequence", "16", "--train.batch", "2"]
    ...     result = sl.profile(settings=[*small, "--run.folder", folder], plan="fp32", steps=1)
    >>> result.profile.steps
    1
    """
    require_count("steps", steps, "a number of steps to profile")
    if show is not None and not callable(show):
        problem = f"a {type(show).__name__} cannot be called with the result"
        raise PlanError("show", problem, "Give a function of a ProfileResult, or none.")
    read = recipe if isinstance(recipe, Recipe) else read_recipe(recipe)
    read = take_plan_optimizer(change(read, settings), plan)
    asked, words = read_plan(plan), automatic_words(plan)
    asked = asked or (None if words else read.plan_choice())
    with ExitStack() as stack:
        job = open_job(read, asked, stack, words=words)
        folder = job.folder / "profile"
        with job.run.world.explain_hangs(), job.batches() as feed:
            found = job.run.profile(feed, steps=steps, folder=folder)
            timeline = memory_timeline(job, next(iter(feed)), folder) if memory else None
        fragments = measure_fragmentation(job.run.world.device) if memory else None
        result = ProfileResult(
            found,
            job.comparison.forecast,
            folder,
            timeline,
            planned_moments(job) if memory else (),
            str(fragments) if fragments else "",
        )
        if job.first:
            write_profile(job, found)
            if show:
                show(result)
        leave_together(job)
    return result


def write_profile(job: TrainingJob, found: Profile) -> None:
    """Write a profile to the journal, and what the dashboard draws of it."""
    job.journal.write("profile", **{**found.to_dict(), "lanes": None})
    seen = SampledStep(dict(found.collectives), found.lanes)
    for kind, entry in seen.entries(job.run.index).items():
        job.journal.write(kind, **entry)


def leave_together(job: TrainingJob) -> None:
    """Wait for rank 0: a rank that leaves while another still draws would be taken for lost."""
    board = job.run.world.notes
    if job.first:
        board.post("profiled", "yes")
    board.read("profiled", FINISH_SECONDS)
    job.run.world.close()


def memory_timeline(job: TrainingJob, batch: Any, folder: Path) -> MemoryTimeline:
    run = job.run
    return record_timeline(
        lambda: run.step(batch),
        run.module,
        run.optimizer,
        run.world.device,
        vocab=job.comparison.vocab,
        snapshot=folder / f"memory-rank{run.world.place.rank}.pickle",
    )


def planned_moments(job: TrainingJob) -> tuple[tuple[str, Memory], ...]:
    """The planner's memory at each moment of the step; empty where it has none."""
    context = suggestion_context(job.run)
    if context.facts is None or context.cluster is None:
        return ()
    settled = job.run.plan.settle(context.cluster.num_devices)
    return forecast_moments(context.facts, settled, context.cluster, context.calibration)
