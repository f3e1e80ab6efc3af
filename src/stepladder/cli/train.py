"""Train a model. With no argument: a small GPT on the Python standard library's own source."""

from __future__ import annotations

import argparse
import signal
from contextlib import ExitStack
from typing import TYPE_CHECKING

from .show import as_json, table

if TYPE_CHECKING:
    from stepladder.plan import Plan, Recipe


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", nargs="?", metavar="RUN.toml", help="what to train, and how")
    parser.add_argument("--ranks", type=int, metavar="N", help="start N ranks on this machine")
    parser.add_argument("--plan", metavar="WORDS", help="such as 'bf16 micro=4 recompute=blocks'")
    parser.add_argument("--json", action="store_true", help="only the closing figures, as JSON")
    parser.set_defaults(settings=True)
    parser.epilog = (
        "Any key of the recipe can be set: --model.name llama-tiny --train.steps 50 "
        "--optimizer.lr 1e-3 --data.source DIR. The sections are model, data, plan, optimizer, "
        "rate, train and run."
    )


def run(options: argparse.Namespace) -> int:
    from stepladder.errors import PlanError
    from stepladder.plan import Plan, read_recipe

    recipe = read_recipe(options.recipe, options.settings)
    plan = Plan.parse(options.plan) if options.plan else recipe.plan_choice()
    if options.ranks is not None and options.ranks < 1:
        raise PlanError("ranks", f"{options.ranks} is too few", "Use 1 or more.")
    if options.ranks and options.ranks > 1:
        from .ranks import start_ranks

        return start_ranks(options, recipe, plan)
    return train(options, recipe, plan)


def train(options: argparse.Namespace, recipe: Recipe, plan: Plan | None) -> int:
    """Train as the one rank that this process is."""
    from .session import Session

    with ExitStack() as stack:
        session = Session.start(recipe, plan, stack, quiet=options.json)
        stopped = session.train()
        figures = session.finish(stopped)
        session.run.world.close()
    if session.first and options.json:
        as_json(figures)
    elif session.first:
        table("Measured", ["what", "value"], [list(pair) for pair in figures.items()])
    return 0 if stopped is None else 128 + signal.Signals[stopped]  # as a shell would see it
