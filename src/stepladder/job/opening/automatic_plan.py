"""A run whose plan is left to be chosen: `--plan "auto tune=30"`, and what such a run goes on with.

`climb` chooses, and tries plans on the run's first batch where it is given the seconds. The choice
is written to the run's folder, and a run that goes on keeps it: trials of another day, or of
another machine, may end otherwise.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from torch import nn

from stepladder.data import SampleOrder, Source, load_batch
from stepladder.data.conversations.preference_rows import PreferenceRows
from stepladder.data.streams.streamed_source import StreamedSource
from stepladder.errors import PlanError
from stepladder.plan import BatchSplit, Plan, Recipe, read_recipe
from stepladder.plan.automatic import written_plan
from stepladder.plan.refit import refit
from stepladder.train import Run
from stepladder.train.tuning.auto_plan import can_compile
from stepladder.train.user_code.user_code import LossFunction
from stepladder.world import Place, pick_device

from .open_recipe import climb_recipe, recipe_optimizer

KEPT = "plan.toml"  # in a run's folder: the plan that it was begun with
LONG = 500  # steps, from which a run is worth a minute of trials


def kept_plan(recipe: Recipe, *, elastic: bool) -> tuple[Plan, str] | None:
    """The plan of the run that goes on here, for the ranks there are; None where a run begins."""
    folder = Path(recipe.run.folder) if recipe.run.folder else None
    if folder is None or not (recipe.run.resume or elastic) or not (folder / "latest").exists():
        return None
    path = folder / KEPT
    if not path.exists():
        return None
    plan = Plan.from_toml(path.read_text())
    if batch_before(folder) not in (None, recipe.train.batch):  # another is asked for now
        plan = replace(plan, batch=BatchSplit(micro=min(plan.batch.micro or 1, recipe.train.batch)))
    fitted = refit(plan, Place.from_environment().num_ranks)
    because = "the plan that this run was begun with"
    return fitted.plan, f"{because}; {fitted.said}" if fitted.said else because


def words_where_none(recipe: Recipe, training: Source, *, elastic: bool) -> str:
    """What a run without a plan goes by: trials on a GPU, where it is long enough to gain by them.

    A run that machines may leave is planned for the ranks there are, preference tuning has no batch
    before its reference model has judged the answers, and a stream has none that a start may read.
    """
    device = pick_device(recipe.train.device, Place.from_environment().local_rank)
    tries = recipe.train.steps >= LONG and not elastic and can_compile(device)
    return "auto" if tries and not isinstance(training, (PreferenceRows, StreamedSource)) else ""


def batch_before(folder: Path) -> int | None:
    """The batch of the recipe that was trained here; None where nobody knows."""
    try:
        return read_recipe(folder / "run.toml").train.batch
    except PlanError:  # edited since, or gone
        return None


def start_automatic(
    recipe: Recipe,
    module: nn.Module,
    words: str,
    training: Source,
    loss: str | LossFunction | None,
) -> tuple[Run, Recipe]:
    """A run with the plan that `climb` chooses for this recipe's optimizer and batch, or for the
    batch among the words, which the recipe then has."""
    if isinstance(training, PreferenceRows):
        problem = "'auto' tries plans before the reference model has judged the pairs of answers"
        raise PlanError("plan", problem, "Write the plan out, such as 'bf16 micro=4', or none.")
    size = written_plan(words).batch.sequences
    if size is None:
        size = recipe.train.batch
        words = f"{words} batch={size}"
    rows = -(-size // Place.from_environment().num_ranks)
    order = SampleOrder(len(training), recipe.data.seed)
    sample = load_batch(training, order, np.arange(rows))
    optimizer = recipe_optimizer(recipe, size)
    run = climb_recipe(recipe, module, plan=words, sample=sample, loss=loss, optimizer=optimizer)
    return run, replace(recipe, train=replace(recipe.train, batch=size))
