"""Train a model. With no argument: a small GPT on the Python standard library's own source."""

from __future__ import annotations

import argparse
import os
from contextlib import ExitStack
from typing import TYPE_CHECKING

from stepladder.cli.import_torch import loading
from stepladder.cli.results.tables import as_json, table

if TYPE_CHECKING:
    from stepladder.plan import Plan, Recipe


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", nargs="?", metavar="RUN.toml", help="what to train, and how")
    parser.add_argument("--ranks", metavar="N", help="start N ranks on this machine")
    parser.add_argument(
        "--restarts", metavar="K", help="start ranks that were lost so often again (3)"
    )
    parser.add_argument(
        "--nodes",
        metavar="MIN:MAX",
        help="machines that run this; they may leave and return",
    )
    parser.add_argument("--rendezvous", metavar="HOST:PORT", help="where they meet: one of them")
    parser.add_argument(
        "--elastic",
        action="store_true",
        help="go on from what run.folder holds, if anything, with a plan fitted to the ranks",
    )
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

    recipe = read_recipe(options.recipe, options.settings)
    plan = Plan.parse(options.plan) if options.plan else recipe.plan_choice()
    if any((options.ranks, options.restarts, options.nodes, options.rendezvous)):
        # Read when torch is loaded. What its store has to say of machines that leave, we say.
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
        with loading():
            from stepladder.cli.training.start_ranks import Start, start_ranks

        start = Start.read(options, recipe)
        if start.by_launcher:
            return start_ranks(options, recipe, plan, start)
    return train(options, recipe, plan)


def train(options: argparse.Namespace, recipe: Recipe, plan: Plan | None) -> int:
    """Train as the one rank that this process is."""
    with loading():
        from stepladder.cli.training.fewer_rows import leave_note, with_less
        from stepladder.cli.training.session import Session
        from stepladder.errors import RankOutOfMemory
        from stepladder.world import Stop, stop_code

    plan, less = with_less(plan, recipe) if options.elastic else (plan, [])
    with ExitStack() as stack:
        session = Session.start(recipe, plan, stack, quiet=options.json, elastic=options.elastic)
        session.run.events += less
        # To the very end: a signal that comes while the last checkpoint is written changes nothing.
        stop = stack.enter_context(Stop(recipe.run.grace_seconds))
        try:
            stopped = session.train(stop)
        except RankOutOfMemory as short:
            leave_note(session.folder, short)
            raise
        figures = session.finish(stopped, stop)
        session.run.world.close()
    if session.first and options.json:
        as_json(figures)
    elif session.first and not stopped:
        table("Measured", ["what", "value"], [list(pair) for pair in figures.items()])
    return stop_code(stopped) if stopped else 0
