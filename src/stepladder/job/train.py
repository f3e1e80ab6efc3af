"""`train`: what `stepladder train` does with a recipe, as a function that a program can call."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from stepladder.errors import RankOutOfMemory
from stepladder.job.opening.reduced_micro_batch import apply_reduced_micro, save_reduced_micro
from stepladder.plan import Plan, Recipe, read_recipe
from stepladder.world import Stop

from .display import Display, NoDisplay
from .train_result import TrainResult
from .training_job import TrainingJob


def train(
    recipe: Recipe | str | Path | None = None,
    *,
    plan: Plan | str | None = None,
    elastic: bool = False,
    display: Display | None = None,
) -> TrainResult:
    """Train what a recipe says, as the one rank that this process is.

        result = sl.train("RUN.toml")
        result.validation_loss, result.mfu, result.checkpoint

    Started by torchrun or `stepladder train --ranks N`, each process calls it and is one rank.

    Args:
        recipe: a file, a `Recipe`, or nothing for the built-in run.
        plan: instead of the recipe's, such as "bf16 micro=4 recompute=blocks".
        elastic: resume from what `run.folder` holds, if anything, with a plan for the ranks there
            are.
        display: follows the run; without one nothing is shown.
    """
    read = recipe if isinstance(recipe, Recipe) else read_recipe(recipe)
    asked = Plan.parse(plan) if isinstance(plan, str) else plan or read.plan_choice()
    events: list[str] = []
    if elastic:
        asked, events = apply_reduced_micro(asked, read)
    with ExitStack() as stack:
        job = TrainingJob.open(read, asked, stack, elastic=elastic)
        job.display = display or NoDisplay()
        job.run.events += events
        # To the very end: a signal that comes while the last checkpoint is written changes nothing.
        stop = stack.enter_context(Stop(read.run.grace_seconds))
        try:
            stopped = job.train(stop)
        except RankOutOfMemory as error:
            save_reduced_micro(job.folder, error)
            raise
        result = job.finish(stopped, stop)
        job.run.world.close()
    return result
