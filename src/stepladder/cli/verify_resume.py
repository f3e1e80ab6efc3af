"""`stepladder verify resume`: the runs asked for, the table, the picture and the verdict."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from stepladder.cli.results.plots import figure, place_legend, store
from stepladder.cli.results.tables import as_json, plain, progress, table
from stepladder.errors import PlanError
from stepladder.palette import series_colours

from .import_torch import loading
from .verify_parity import (
    FAILED,
    MISTAKE,
    each_of,
    named_recipe,
    read_plans,
    short,
    subject_of,
)

if TYPE_CHECKING:
    from stepladder.plan import Plan, Recipe
    from stepladder.verify import Subject
    from stepladder.verify.resume_trial import Journey
    from stepladder.verify.resume_verdict import Resumption

MODEL = "gpt:layers=2,hidden=32,heads=2,vocab=64"  # which has dropout, unlike a llama
DROPOUT = 0.1
PLANS = "fp32; fp16; fp32 ddp; fp32 zero3"
MOVED = "fp32 zero3; fp32"  # to another number of ranks


def verify_resume(options: argparse.Namespace) -> int:
    """Kill and resume every run asked for; 1 where one is not the same, 2 where one is refused."""
    with loading():
        from stepladder.verify.resume_trial import compare_journeys

    journeys = make_journeys(options)
    rows = list(progress(compare_journeys(journeys), "runs", len(journeys)))
    if options.plot:
        plot(rows, options.plot)
    name = journeys[0].subject.name
    if options.json:
        found = [{**plain(row), "verdict": row.verdict} for row in rows]
        as_json({"model": name, "same": all(row.same for row in rows), "runs": found})
    else:
        show(rows, name, journeys[0].steps)
    return exit_code(rows)


def exit_code(rows: Sequence[Resumption]) -> int:
    verdicts = {row.verdict for row in rows}
    return FAILED if verdicts & {"DIFFERENT", "BROKE"} else MISTAKE if "refused" in verdicts else 0


def make_journeys(options: argparse.Namespace) -> list[Journey]:
    """What is run, killed and resumed: of a recipe, of a model, or of the built-in one."""
    from stepladder.data import Workers
    from stepladder.job.recipe_subject import training_settings
    from stepladder.verify.resume_trial import RESUMED, check_journeys

    recipe = named_recipe(options)
    check_options(options, recipe)
    workers = options.workers or "2"
    Workers.parse(workers, None)  # a mistake to hear of before ranks start
    how: dict[str, Any] = {"device": options.device or "cpu", "workers": workers}
    subject = subject_of(options, MODEL, DROPOUT)
    if recipe:
        how.update(training_settings(recipe))
    else:
        how["optimizer"] = (options.optimizer or [RESUMED])[0]
        how["rate"] = "cosine warmup=2 steps=1000"
    journeys: list[Journey] = []

    def add(chain: Sequence[Plan]) -> None:
        journeys.append(journey(subject, chain, options, how))

    each = [partial(add, chain) for chain in chains(options, recipe)]
    each_of([*each, lambda: check_journeys(journeys)])
    return journeys


def check_options(options: argparse.Namespace, recipe: Recipe | None) -> None:
    if recipe and options.optimizer:
        problem = "--optimizer is a recipe's own, and one is given"
        raise PlanError("verify", problem, "Write --optimizer.name and --optimizer.lr.")
    if options.optimizer and len(options.optimizer) > 1:
        problem = f"{len(options.optimizer)} optimizers, and a run resumes with the one it had"
        raise PlanError("optimizer", problem, "Give one.")
    if options.plan and options.plans:
        raise PlanError("verify", "--plan and --plans are both given", "Use --plans 'a; b'.")


def chains(options: argparse.Namespace, recipe: Recipe | None) -> list[list[Plan]]:
    """Each run's plans in their order; a single one is resumed in itself."""
    from stepladder.job.recipe_subject import with_recipe_batch
    from stepladder.plan import Plan

    texts = options.plans or options.plan, options.then
    named, then = each_of(partial(read_plans, text) if text else list for text in texts)
    if recipe:
        plans = named or [recipe.plan_choice() or Plan()]
        return [[with_recipe_batch(plan, recipe) for plan in (one, *then)] for one in plans]
    if not named and not then:
        return [*([plan] for plan in read_plans(PLANS)), read_plans(MOVED)]
    return [[plan, *then] for plan in named or read_plans(PLANS)]


def journey(
    subject: Subject, chain: Sequence[Plan], options: argparse.Namespace, how: dict[str, Any]
) -> Journey:
    from stepladder.verify.resume_trial import make_journey

    first, *rest = [on_ranks(chain[0], options.ranks), *chain[1:]]
    steps = 4 * max(2, len(chain)) if options.steps is None else options.steps
    same = all(plan == first for plan in rest)
    return make_journey(replace(subject, dropout=same), [first, *rest], steps=steps, **how)


def on_ranks(plan: Plan, ranks: int | None) -> Plan:
    """The plan on so many ranks: data parallel where it names no axis."""
    from stepladder.job.opening.plan_for_ranks import spread

    if ranks is None:
        return plan
    if ranks < 1:
        raise PlanError("ranks", f"{ranks} is too few", "Use 1 or more.")
    return replace(plan, layout=spread(plan, ranks).layout.settle(ranks))


def show(rows: Sequence[Resumption], name: str, steps: int) -> None:
    columns = ["plan", "ranks", "killed in step", "resumed at", "loss", "parameters", "allowed",
               "from a plain loop", "verdict"]  # fmt: skip
    cells = [
        [row.plan, listed(row.ranks), listed(row.killed_in), listed(row.resumed_at),
         *map(short, (row.loss, row.parameters, row.tolerance)),
         "" if row.plain is None else short(row.plain), row.verdict]
        if not row.problem
        else [row.plan, listed(row.ranks), "", "", "", "", "", "", row.verdict]
        for row in rows
    ]  # fmt: skip
    title = f"{name}: largest relative differences from a run never stopped, {steps} steps"
    table(title, columns, cells)
    for row in rows:
        for difference in row.different or filter(None, [row.problem]):
            print(f"{row.plan}: {difference}.".replace("..", "."))
    bad = sum(not row.same for row in rows)
    if bad:
        print(f"{bad} of {len(rows)} runs did not go on as if they had never been stopped.")
    else:
        several = f"All {len(rows)} runs went on as if they had never been stopped."
        print(several if len(rows) > 1 else "The run went on as if it had never been stopped.")


def listed(numbers: Sequence[int]) -> str:
    return " → ".join(map(str, numbers))


def plot(rows: Sequence[Resumption], path: str) -> None:
    """Both runs' losses, and where one was killed."""
    drawn, axes = figure(8.0, 4.5)
    for row, colour in zip(rows, series_colours(len(rows))):
        axes.plot(row.expected, color=colour, linewidth=4, alpha=0.3)
        axes.plot(row.found, color=colour, linewidth=1.2, label=f"{row.plan}: {row.verdict}")
        for step in row.killed_in:
            axes.axvline(step, linestyle="--", color=colour, linewidth=0.8)
    axes.set(xlabel="step", ylabel="loss (wide: never stopped; dashed: killed)")
    place_legend(axes, fontsize=7)
    store(drawn, path)
