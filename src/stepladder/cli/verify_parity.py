"""`stepladder verify parity`: the plans asked for, the table, the picture and the verdict."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from stepladder.cli.results.plots import figure, place_legend, store
from stepladder.cli.results.tables import as_json, progress, table
from stepladder.errors import PlanError, raise_all
from stepladder.palette import REFERENCE

from .import_torch import loading
from .user_code_options import announce, read_user_code, recipe_settings

if TYPE_CHECKING:
    from stepladder.plan import Recipe
    from stepladder.verify import Sameness, Subject

DEFAULT_MODEL = "llama:layers=4,hidden=32,heads=4,vocab=64"
DEFAULT_PLANS = "fp32 ddp; fp32 zero1; fp32 zero2; fp32 zero3; bf16 zero3"
STEPS = 10
FAILED, MISTAKE = 1, 2
LEAST = 1e-9  # where a difference of nothing stands on an axis of powers of ten


def verify_parity(options: argparse.Namespace) -> int:
    """Compare every plan with one device; 1 where one differs, 2 where one is refused."""
    with loading():
        from stepladder.verify import ParityVerdict
        from stepladder.verify.course import make_course, optimizers_for
        from stepladder.verify.parity_trial import ADAMW, SGD, compare_courses

    options.steps = STEPS if options.steps is None else options.steps
    if options.steps < 1:
        raise PlanError("steps", f"{options.steps} is not a number of steps", "Use 1 or more.")
    plans = read_plans(DEFAULT_PLANS if options.plans is None else options.plans)
    optimizers = options.optimizer or [SGD, ADAMW]
    subject = subject_of(options, DEFAULT_MODEL)
    make = partial(make_course, subject, steps=options.steps, device=options.device or "cpu")
    courses = [
        make(plan, optimizer) for plan in plans for optimizer in optimizers_for(plan, optimizers)
    ]
    rows = list(progress(compare_courses(courses), "comparisons", len(courses)))
    if options.plot:
        plot(rows, options.plot)
    verdict = ParityVerdict(subject.name, options.steps, tuple(rows), tuple(courses))
    located = verdict.locations() if options.locate else []
    if options.json:
        found = {"located": [each.to_dict() for each in located]} if options.locate else {}
        as_json({"model": subject.name, "same": verdict.same, "plans": plain(rows), **found})
    else:
        show(rows, subject.name, options.steps)
        print(*located, sep="\n", end="\n" if located else "")
    if options.certificate:
        written = verdict.certify(options.certificate)
        print(f"Certificate: {written}", file=sys.stderr)
    differs = any(each.difference for each in located)
    return exit_code(rows) or (FAILED if differs else 0)


def subject_of(options: argparse.Namespace, default: str, dropout: float = 0.0) -> Subject:
    """What is proved: a recipe's model, data and loss, or those of a model that was named.

    Args:
        dropout: of a built-in model that has any.
    """
    from stepladder.job.recipe_subject import subject_of_recipe
    from stepladder.verify import find_subject

    recipe = named_recipe(options)
    if recipe:
        texts = {"recipe": options.model, "settings": recipe_settings(options)}
        subject = replace(subject_of_recipe(recipe), named=texts)
    else:
        code = read_user_code(options, options.model or default)
        subject = find_subject(code, dropout)
    announce(subject.taken)
    return subject


def named_recipe(options: argparse.Namespace) -> Recipe | None:
    """The recipe that was given, as a file or by its keys; None for a model alone."""
    from stepladder.plan.recipe import is_recipe, read_recipe

    given = options.settings or (options.model and is_recipe(options.model))
    return read_recipe(options.model, recipe_settings(options)) if given else None


def read_plans(text: str) -> list[Any]:
    from stepladder.plan import Plan

    parts = [part.strip() for part in text.split(";")]
    plans = each_of(partial(Plan.parse, part) for part in parts if part)
    if not plans:
        raise PlanError("plans", f"'{text}' names no plan", "Write 'fp32 ddp; fp32 zero3'.")
    return plans


def each_of(makes: Iterable[Callable[[], Any]]) -> list[Any]:
    """What every call makes, or the problems of all of them, each reported once."""
    made: list[Any] = []
    found: dict[str, PlanError] = {}
    for make in makes:
        try:
            made.append(make())
        except PlanError as refused:
            several = getattr(refused, "problems", (refused,))
            found.update((str(problem), problem) for problem in several)
    raise_all(found.values())
    return made


def plain(rows: Sequence[Sameness]) -> list[dict[str, Any]]:
    return [{**asdict(row), "verdict": row.verdict} for row in rows]


def exit_code(rows: Sequence[Sameness]) -> int:
    verdicts = {row.verdict for row in rows}
    return FAILED if verdicts - {"same", "refused"} else MISTAKE if "refused" in verdicts else 0


def show(rows: Sequence[Sameness], name: str, steps: int) -> None:
    columns = [
        "plan",
        "optimizer",
        "ranks",
        "loss",
        "norm",
        "parameters",
        "buffers",
        "allowed",
        "verdict",
    ]
    cells = [
        [row.plan, row.optimizer, row.ranks, *map(short, numbers(row)), row.verdict]
        if not row.problem
        else [row.plan, row.optimizer, row.ranks, *[""] * len(numbers(row)), row.verdict]
        for row in rows
    ]  # fmt: skip
    title = f"{name}: largest relative differences from one device, {steps} steps"
    table(title, columns, cells)
    reasons = [f"{row.plan}: {row.reason.rstrip('.')}." for row in rows if not row.same]
    print(*dict.fromkeys(reasons), sep="\n", end="\n" if reasons else "")
    print(sentence(rows))


def numbers(row: Sameness) -> tuple[float, ...]:
    return row.loss, row.norm, row.parameters, row.buffers, row.tolerance


def short(value: float) -> str:
    return f"{value:.1e}"


def sentence(rows: Sequence[Sameness]) -> str:
    plans = list(dict.fromkeys(row.plan for row in rows))
    bad = {row.plan for row in rows if not row.same}
    if not bad:
        return f"All {len(plans)} plans compute what one device computes."
    return f"{len(bad)} of {len(plans)} plans were not shown to compute what one device computes."


def plot(rows: Sequence[Sameness], path: str) -> None:
    """Each plan's loss difference over the steps, and what is allowed."""
    drawn, axes = figure(8.0, 4.5)
    for row in rows:
        if row.by_step:
            heights = [max(value, LEAST) for value in row.by_step]
            name = f"{row.plan}, {row.optimizer.split()[0]}"
            axes.plot(range(len(heights)), heights, label=name, linewidth=1.2)
    for tolerance in sorted({row.tolerance for row in rows if not row.problem}):
        axes.axhline(tolerance, linestyle="--", color=REFERENCE, linewidth=0.8)
    axes.set(xlabel="step", ylabel="relative difference of the loss", yscale="log")
    place_legend(axes, fontsize=7)
    store(drawn, path)
