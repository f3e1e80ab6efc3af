"""Prove that a change changes nothing that matters.

precision: train the same model on the same batches in two precisions and compare the validation
loss: under 1 % apart is fine, over 5 % is not.

parity: train a model on one device and under each plan, on as many local ranks as the plan needs,
from the same weights on the same batches; compare losses, gradient norms and parameters.

resume: train, kill a rank with SIGKILL in the middle of a step, go on in new processes from what
was saved, and compare with a run that was never stopped: to the last bit on the same ranks.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from stepladder.cli.import_torch import loading
from stepladder.cli.results.tables import as_json, table
from stepladder.cli.verify_parity import verify_parity
from stepladder.cli.verify_resume import verify_resume
from stepladder.errors import PlanError

if TYPE_CHECKING:
    from stepladder.plan import Precision, Recipe
    from stepladder.verify.compare_precisions import Trained


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=["precision", "parity", "resume"])
    parser.add_argument("recipe", nargs="?", metavar="RUN.toml")
    parser.add_argument("--reference", default="fp32", metavar="PRECISION")
    parser.add_argument("--other", default="bf16", metavar="PRECISION")
    parser.add_argument(
        "--operations", action="store_true", help="which operation runs in which type"
    )
    parser.add_argument(
        "--gradients", action="store_true", help="each layer's gradients, and advice"
    )
    both = parser.add_argument_group("parity and resume")
    both.add_argument("--plans", metavar="TEXT", help="'fp32 zero3 shard=2; fp32 tensor=2'")
    both.add_argument(
        "--model",
        metavar="NAME",
        help="a preset, a shape, or path.py:function that returns module, samples[, loss]",
    )
    both.add_argument("--steps", type=int, help="of every run")
    both.add_argument(
        "--optimizer", action="append", metavar="TEXT", help="for parity, also several times"
    )
    both.add_argument("--device", help="cpu unless told")
    both.add_argument("--plot", metavar="FILE.png", help="draw it over the steps")
    resume = parser.add_argument_group("resume")
    resume.add_argument("--plan", metavar="TEXT", help="the same as --plans with one")
    resume.add_argument(
        "--then", metavar="TEXT", help="resume in these: 'fp32 zero3 shard=2; fp32'"
    )
    resume.add_argument("--ranks", type=int, metavar="N", help="of the plans that are resumed")
    resume.add_argument("--workers", metavar="N", help="that read ahead: 2, or '2 processes'")
    parser.add_argument("--json", action="store_true")
    parser.set_defaults(settings=True)
    parser.epilog = "Any key of the recipe can be set: --train.steps 100 --model.name llama-tiny."


RESUME = {"plan", "then", "ranks", "workers"}
BOTH = {"plans", "model", "steps", "optimizer", "device", "plot"}
FOREIGN = {"precision": RESUME | BOTH, "parity": RESUME, "resume": set()}  # options that do nothing


def run(options: argparse.Namespace) -> int:
    for name in sorted(FOREIGN[options.what]):
        if getattr(options, name) is not None:
            problem = f"--{name} is not for {options.what}"
            raise PlanError("verify", problem, f"'stepladder verify {options.what}' does without.")
    if options.what == "parity":
        return verify_parity(options)
    if options.what == "resume":
        return verify_resume(options)
    from stepladder.plan import Precision, read_recipe

    with loading():
        from stepladder.verify.compare_precisions import compare

    recipe = read_recipe(options.recipe, ["--train.steps=60", *options.settings])
    reference, other = Precision.parse(options.reference), Precision.parse(options.other)
    found = compare(lambda precision: train(recipe, precision), reference, other)
    result: dict[str, Any] = {"comparison": asdict(found), "parted_at": found.parted_at}
    if options.operations:
        result["operations"] = [asdict(row) for row in operations(recipe, other)]
    if options.gradients:
        result["gradients"], result["advice"] = gradients(recipe, other)
    if options.json:
        as_json(result)
    else:
        show(found, result)
    return 1 if found.verdict.failed else 0


def train(recipe: Recipe, precision: Precision) -> Trained:
    """Validation loss and loss curve of the recipe in one precision."""
    from contextlib import ExitStack

    from stepladder.data import batches
    from stepladder.train import fit
    from stepladder.verify.compare_precisions import Trained

    with ExitStack() as stack:
        run, training, validation = open_run(recipe, precision)
        feed = stack.enter_context(run.batches(training, recipe.train.batch, recipe.data.seed))
        losses = [report.loss for report in fit(run, feed, steps=recipe.train.steps)]
        held = stack.enter_context(batches(validation, size=recipe.train.batch, shuffle=False))
        loss = run.evaluate(islice(held, recipe.train.evaluate_batches))
    return Trained(loss, tuple(losses))


def open_run(recipe: Recipe, precision: Precision) -> tuple[Any, Any, Any]:
    from stepladder.job.opening.open_recipe import build_model, open_sources
    from stepladder.plan import Plan
    from stepladder.train import climb

    module = build_model(recipe)
    training, validation = open_sources(recipe, module)
    plan = replace(recipe.plan_choice() or Plan(), precision=precision)
    run = climb(
        module,
        loss="cross_entropy",
        plan=replace(plan, optimizer=recipe.optimizer_choice()),
        rate=recipe.rate_choice(),
        seed=recipe.train.seed,
        device=recipe.train.device,
        nonfinite="skip",  # a run that breaks down is the finding, not an error
    )
    return run, training, validation


def operations(recipe: Recipe, precision: Precision) -> list[Any]:
    from stepladder.model.tracing.precision_table import precision_table

    run, training, _ = open_run(recipe, precision)
    with run.batches(training, recipe.train.batch) as feed:
        return list(precision_table(run.module, next(feed).inputs, precision))


def gradients(recipe: Recipe, precision: Precision) -> tuple[list[dict[str, Any]], list[str]]:
    from stepladder.verify.gradient_magnitudes import advise, measure_gradients

    run, training, _ = open_run(recipe, precision)
    with run.batches(training, recipe.train.batch) as feed:
        run.gradients(next(feed))
    rows = measure_gradients(run.module)
    return [asdict(row) for row in rows], advise(rows, precision)


def show(found: Any, result: dict[str, Any]) -> None:
    rows = [
        [str(precision), trained.losses[-1] if trained.losses else None, trained.validation_loss]
        for precision, trained in zip((found.reference, found.other), found.runs)
    ]
    table("Precision", ["precision", "last training loss", "validation loss"], rows)
    for title in ("operations", "gradients"):
        if kept := result.get(title):
            table(title.capitalize(), list(kept[0]), [list(row.values()) for row in kept])
    for sentence in result.get("advice", []):
        print(sentence)
    if found.parted_at is not None:
        print(f"The training losses part at step {found.parted_at}.")
    print(found)
