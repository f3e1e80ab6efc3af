"""`stepladder verify precision` as a function: a recipe trained in two precisions, and compared."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace

from stepladder.data import Source
from stepladder.job.opening.open_recipe import (
    build_model,
    open_sources,
    sample_for_climb,
    user_code,
)
from stepladder.job.opening.plan_optimizer import take_plan_optimizer
from stepladder.model.tracing.precision_table import PrecisionRow, precision_table
from stepladder.plan import Plan, Precision, Recipe
from stepladder.train import Run, climb, fit
from stepladder.train.loop import held_out
from stepladder.verify.compare_precisions import Comparison, Trained, compare
from stepladder.verify.gradient_magnitudes import LayerGradient, advise, measure_gradients


@dataclass(frozen=True, slots=True)
class PrecisionTrial:
    comparison: Comparison
    operations: tuple[PrecisionRow, ...] = ()  # which operation runs in which type
    gradients: tuple[LayerGradient, ...] = ()  # each layer's
    advice: tuple[str, ...] = ()


def try_precisions(
    recipe: Recipe,
    reference: Precision,
    other: Precision,
    *,
    operations: bool = False,
    gradients: bool = False,
) -> PrecisionTrial:
    """Train the recipe in both precisions on the same batches and compare.

    Args:
        operations: also list which operation runs in which type under `other`.
        gradients: also measure each layer's gradients under `other`.
    """
    recipe = take_plan_optimizer(recipe, None)
    compared = compare(lambda precision: train_in(recipe, precision), reference, other)
    found = PrecisionTrial(compared)
    if operations:
        found = replace(found, operations=operations_in(recipe, other))
    if gradients:
        rows = gradients_in(recipe, other)
        keep = (recipe.plan_choice() or Plan()).keep
        found = replace(found, gradients=rows, advice=tuple(advise(rows, other, keep=keep)))
    return found


def train_in(recipe: Recipe, precision: Precision) -> Trained:
    """Validation loss and loss curve of the recipe in one precision."""
    with ExitStack() as stack:
        run, training, validation = open_run(recipe, precision)
        feed = stack.enter_context(run.batches(training, recipe.train.batch, recipe.data.seed))
        losses = [report.loss for report in fit(run, feed, steps=recipe.train.steps)]
        train = recipe.train
        unseen = held_out(run, validation, size=train.batch, most=train.evaluate_batches)
        loss = run.evaluate(unseen)
    return Trained(loss, tuple(losses))


def open_run(recipe: Recipe, precision: Precision) -> tuple[Run, Source, Source]:
    module = build_model(recipe)
    training, validation = open_sources(recipe, module)
    asked = recipe.plan_choice() or Plan()
    plan = replace(asked, precision=precision, optimizer=recipe.optimizer_choice())
    if not precision.masters:  # the other may keep them in fewer bytes
        plan = replace(plan, state=Plan().state)
    run = climb(
        module,
        loss=user_code(recipe).read_loss(training),
        plan=plan,
        sample=sample_for_climb(recipe, plan, training, module),
        rate=recipe.rate_choice(),
        seed=recipe.train.seed,
        device=recipe.train.device,
        nonfinite="skip",  # a run that breaks down is the finding, not an error
    )
    return run, training, validation


def operations_in(recipe: Recipe, precision: Precision) -> tuple[PrecisionRow, ...]:
    run, training, _ = open_run(recipe, precision)
    with run.batches(training, recipe.train.batch) as feed:
        return tuple(precision_table(run.module, next(feed).inputs, precision))


def gradients_in(recipe: Recipe, precision: Precision) -> tuple[LayerGradient, ...]:
    run, training, _ = open_run(recipe, precision)
    with run.batches(training, recipe.train.batch) as feed:
        run.gradients(next(feed))
    return measure_gradients(run.module, recipe.optimizer_choice(), scale=run.scale.scale.item())
