"""`train`: what `stepladder train` does with a recipe, as a function that a program can call."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path

from stepladder.errors import PlanError, RankOutOfMemory, require_type
from stepladder.job.opening.automatic_plan import kept_plan
from stepladder.job.opening.built_in_run import ChosenRun, read_built_in
from stepladder.job.opening.plan_optimizer import take_plan_optimizer
from stepladder.job.opening.reduced_micro_batch import apply_reduced_micro, save_reduced_micro
from stepladder.plan import Plan, Recipe, read_recipe
from stepladder.plan.automatic import automatic_words, written_plan
from stepladder.plan.recipe import override
from stepladder.record.journal_writer import note_end
from stepladder.world import Place, StopSignals

from .display import Display
from .open_job import open_job
from .train_result import TrainResult


def train(
    recipe: Recipe | str | Path | None = None,
    *,
    settings: Sequence[str] = (),
    plan: Plan | str | None = None,
    elastic: bool = False,
    display: Display | None = None,
) -> TrainResult:
    """Train what a recipe says, as the one rank that this process is.

    `sl.train("RUN.toml")` is what `stepladder train RUN.toml` does, without its screen. Started by
    torchrun or `stepladder train --ranks N`, each process calls it and is one rank.

    Args:
        recipe: a file, a `Recipe`, or nothing for the built-in run, which takes about a minute of
            the machine it is on.
        settings: keys of the recipe to change, such as ["--train.steps", "50"].
        plan: instead of the recipe's, such as "bf16 micro=4 recompute=blocks". "auto" leaves it to
            be chosen, and "auto tune=30" tries plans on the first batch for so many seconds; a run
            that goes on keeps what was chosen.
        elastic: resume from what `run.folder` holds, if anything, with a plan for the ranks there
            are.
        display: follows the run; without one nothing is shown.

    >>> import tempfile, stepladder as sl
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     small = ["--model.name", "gpt-tiny", "--model.sequence", "16", "--train.steps", "2"]
    ...     result = sl.train(settings=[*small, "--run.folder", folder], plan="fp32")
    >>> result.steps, result.stopped
    (2, False)
    """
    asked, words = read_plan(plan), automatic_words(plan)
    if display is not None and not hasattr(display, "start"):
        problem = f"a {type(display).__name__} does not follow a run"
        raise PlanError("display", problem, "Give a stepladder.job.Display, or none.")
    chosen = read_run(recipe, settings, plan=plan, elastic=elastic)
    read = take_plan_optimizer(chosen.recipe, plan)
    chosen = replace(chosen, recipe=read)
    asked = asked or (None if words else read.plan_choice())
    events: list[str] = []
    kept = kept_plan(read, elastic=elastic) if asked is None else None
    if kept:
        (asked, because), words = kept, ""
        chosen = replace(chosen, because=because)
    if elastic:
        asked, reduced = apply_reduced_micro(asked, read)
        events += reduced
    with ExitStack() as stack:
        job = open_job(
            read, asked, stack, elastic=elastic, chosen=chosen, display=display, words=words
        )
        job.run.events += events
        # To the very end: a signal that comes while the last checkpoint is written changes nothing.
        stop = stack.enter_context(StopSignals(read.run.grace_seconds))
        with note_end(job.journal):
            try:
                stopped = job.train(stop)
            except RankOutOfMemory as error:
                save_reduced_micro(job.folder, error)
                raise
            result = job.finish(stopped, stop)
        job.run.world.close()
    return result


def read_plan(plan: Plan | str | None) -> Plan | None:
    """The plan that is asked for instead of the recipe's; None also where it is to be chosen."""
    kinds = (Plan, str, type(None))
    require_type("plan", plan, kinds, "Write words such as 'bf16 zero3', or give a Plan.")
    if words := automatic_words(plan):
        written_plan(words)  # a wrong word is said before anything is opened
        return None
    return Plan.parse(plan) if isinstance(plan, str) else plan


def read_run(
    recipe: Recipe | str | Path | None,
    settings: Sequence[str],
    *,
    plan: Plan | str | None,
    elastic: bool,
) -> ChosenRun:
    """The run that is asked for: a recipe as it is, or the built-in run for this machine.

    On several ranks, and where machines may leave, the built-in run is its recipe's defaults: each
    process would probe the machine for itself and decide otherwise.
    """
    if isinstance(recipe, Recipe):
        return ChosenRun(change(recipe, settings))
    if recipe is None and not elastic and not Place.from_environment().launched:
        return read_built_in(settings, plan=plan)
    return ChosenRun(read_recipe(recipe, settings))


def change(recipe: Recipe, settings: Sequence[str]) -> Recipe:
    """The recipe with `--section.key value` words applied."""
    return override(asdict(recipe), settings)
