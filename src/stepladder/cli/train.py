"""Train a model. With no argument: a small GPT on the Python standard library's own source."""

from __future__ import annotations

import argparse
import signal
from contextlib import ExitStack

from .show import as_json, table


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", nargs="?", metavar="RUN.toml", help="what to train, and how")
    parser.add_argument("--plan", metavar="WORDS", help="such as 'bf16 micro=4 recompute=blocks'")
    parser.add_argument("--json", action="store_true", help="only the closing figures, as JSON")
    parser.set_defaults(settings=True)
    parser.epilog = (
        "Any key of the recipe can be set: --model.name llama-tiny --train.steps 50 "
        "--optimizer.lr 1e-3 --data.source DIR. The sections are model, data, plan, optimizer, "
        "rate, train and run."
    )


def run(options: argparse.Namespace) -> int:
    from stepladder.plan import Plan, read_recipe

    from .session import Session

    recipe = read_recipe(options.recipe, options.settings)
    plan = Plan.parse(options.plan) if options.plan else recipe.plan_choice()
    with ExitStack() as stack:
        session = Session.start(recipe, plan, stack, quiet=options.json)
        stopped = session.train()
        figures = session.finish(stopped)
    if options.json:
        as_json(figures)
    else:
        table("Measured", ["what", "value"], [list(pair) for pair in figures.items()])
    return 0 if stopped is None else 128 + signal.Signals[stopped]  # as a shell would see it
