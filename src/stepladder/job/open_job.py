"""Opens a training job: ranks, model, data, plan, folder and journal, in the order they need."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

from torch import nn

from stepladder.data import Batch, Source
from stepladder.job.export.export_run import check_exports
from stepladder.job.monitoring.run_journal import environment, open_run_journal
from stepladder.job.opening.automatic_plan import start_automatic, words_where_none
from stepladder.job.opening.built_in_run import ChosenRun
from stepladder.job.opening.check_data import check_data
from stepladder.job.opening.open_recipe import (
    build_model,
    choose_recipe_plan,
    climb_recipe,
    first_sample,
    open_sources,
    sample_for_climb,
    user_code,
)
from stepladder.job.opening.plan_for_ranks import facts_to_share, fit_ranks
from stepladder.job.opening.run_folder import (
    choose_folder,
    describe_data_changes,
    describe_restart,
    was_begun,
    write_text,
)
from stepladder.job.opening.size_run import size_run
from stepladder.job.opening.start_weights import check_weights
from stepladder.job.preferences.prefer_answers import check_preferences, read_loss
from stepladder.job.preferences.reference_model import set_reference
from stepladder.job.summary.forecast_comparison import ForecastComparison
from stepladder.plan import Plan, Recipe
from stepladder.record.journal_writer import NullJournal
from stepladder.track import parse_targets
from stepladder.train import Run
from stepladder.train.user_code.user_code import LossFunction
from stepladder.world import Place
from stepladder.world.world import connect

from .display import Display, NoDisplay
from .training_job import TrainingJob

START_SECONDS = 120  # ranks import torch at their own pace before they meet


def open_job(
    recipe: Recipe,
    plan: Plan | None,
    stack: ExitStack,
    *,
    elastic: bool = False,
    chosen: ChosenRun | None = None,
    display: Display | None = None,
    words: str = "",
) -> TrainingJob:
    """Open everything a recipe names; each mistake in it is found before the first step.

    Args:
        words: of a plan that is left to be chosen, where there is no plan.
    """
    began = time.perf_counter()
    place = Place.from_environment()
    plan, refitted = fit_ranks(plan, recipe, place.num_ranks, elastic=elastic)
    folder = choose_folder(recipe, elastic=elastic)
    begun = was_begun(folder)  # before this run writes there
    check_exports(recipe)
    targets = parse_targets(recipe.run.track)
    start = max(recipe.run.timeout_seconds, START_SECONDS)
    connect(recipe.train.device, timeout_seconds=start, facts=facts_to_share(recipe, plan or words))
    module = build_model(recipe)
    training, validation = open_sources(recipe, module)
    loss = read_loss(recipe, module, training)
    weights = check_weights(recipe, training)
    check_data(module, training, recipe)
    sample = first_sample(training, module)
    code = user_code(recipe)
    tries = plan is None and not words and not (chosen and chosen.sized)
    if words := words_where_none(recipe, training, elastic=elastic) if tries else words:
        run, recipe = start_automatic(recipe, module, words, training, loss)
    else:
        run = start_planned(recipe, module, plan, training, sample, loss)
    board, writes = run.world.notes, run.world.is_rank_zero
    if writes:
        board.post("folder", str(folder))
    folder = Path(board.read("folder", start))  # its name may hold the time of day
    run.journal = open_run_journal(folder, targets, run, stack) if writes else NullJournal()
    sized = None
    if chosen and chosen.sized:
        (display or NoDisplay()).opening(opening_text(recipe, run.plan))
        sized = size_run(run, recipe, training, validation, sample=sample, began=began)
        recipe = sized.recipe
    comparison = sized.comparison if sized else ForecastComparison.start(run, run.plan, sample)
    job = TrainingJob(recipe, run, folder, training, validation, run.journal, comparison)
    job.elastic, job.began, job.sized = elastic, began, sized
    job.display = display or job.display
    run.because = run.because or (chosen.because if chosen else "")
    run.events += set_reference(run, recipe, folder, training, validation)
    run.events += filter(None, (refitted, *weights, code.taken, *getattr(training, "notes", ())))
    open_folder(job, begun=begun)
    return job


def start_planned(
    recipe: Recipe,
    module: nn.Module,
    plan: Plan | None,
    training: Source,
    sample: Batch | None,
    loss: str | LossFunction | None,
) -> Run:
    """A run with this plan, or the planner's where there is none."""
    choice = choose_recipe_plan(recipe, plan, module, sample)
    check_preferences(recipe, choice.plan, training)
    batch = sample_for_climb(recipe, choice.plan, training, module)
    run = climb_recipe(recipe, module, plan=choice.plan, sample=batch, loss=loss)
    run.because = choice.because
    return run


def open_folder(job: TrainingJob, *, begun: bool) -> None:
    """Resume where that is asked for; write recipe and plan beside the journal.

    Args:
        begun: a run was started in the folder before; it may have ended without a checkpoint.
    """
    if job.recipe.run.resume:
        told = job.run.world.gather_texts("begun" if begun else "")[0]  # rank 0 looked first
        if job.run.resume(job.folder) is None:
            if not told:
                job.run.load(job.folder)  # refused: nothing was ever saved there
            job.run.events.append(f"run.resume: {job.folder} has no checkpoint yet: begins anew")
    elif job.elastic:
        job.run.resume(job.folder)
    if not job.first:
        return
    ranks = job.run.world.place.num_ranks
    job.run.events += describe_restart(job.folder, job.run.index, ranks)
    job.run.events += describe_data_changes(job.folder, job.recipe, job.run.index)
    write_text(job.folder / "run.toml", job.recipe.to_toml())
    write_text(job.folder / "plan.toml", job.run.plan.to_toml())
    job.journal.write(
        "start",
        plan=str(job.run.plan),
        step=job.run.index,
        because=job.run.because,
        ranks=ranks,
        environment=environment(job.run.world),
        **(job.sized.record() if job.sized else {}),
    )
    if job.comparison.forecast:
        job.journal.write("forecast", **job.comparison.forecast.to_dict())


def opening_text(recipe: Recipe, plan: Plan) -> str:
    """What is said while nothing else is to be seen."""
    compiled = ", compiled first" if plan.compile else ""
    return f"Measuring this machine with {recipe.model.name}{compiled}; the forecast follows."
