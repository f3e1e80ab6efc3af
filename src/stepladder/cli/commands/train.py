"""Train a model. With no argument: a small GPT on the Python standard library's own source."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from stepladder.cli.import_torch import loading
from stepladder.cli.user_code_options import MODEL, configure_user_code, recipe_settings

if TYPE_CHECKING:
    from stepladder.job.opening.start_ranks import RankStart
    from stepladder.plan import Recipe


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", nargs="?", metavar="RUN.toml|MODEL", help=f"a recipe, or {MODEL}")
    configure_user_code(parser)
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
    parser.add_argument("--plan", metavar="WORDS", help="such as 'bf16 micro=4', or 'auto tune=30'")
    parser.add_argument("--json", action="store_true", help="only the closing figures, as JSON")
    parser.set_defaults(settings=True)
    parser.epilog = (
        "Any key of the recipe can be set: --model.name llama-tiny --train.steps 50 "
        "--optimizer.lr 1e-3 --data.source DIR. The sections are model, data, plan, optimizer, "
        "rate, train and run. To fine-tune: FOLDER --data chat.jsonl --run.export OUT."
    )


def run(options: argparse.Namespace) -> int:
    from stepladder.plan import read_recipe

    options.settings = recipe_settings(options)
    recipe = read_recipe(options.model, options.settings)
    if any((options.ranks, options.restarts, options.nodes, options.rendezvous)):
        # Read when torch is loaded. What its store has to say of machines that leave, we say.
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
        with loading():
            from stepladder.cli.rank_options import read_rank_start

        start = read_rank_start(options, recipe)
        if start:
            return start_ranks(options, recipe, start)
    return train(options)


def start_ranks(options: argparse.Namespace, recipe: Recipe, start: RankStart) -> int:
    """Start this command again as each of several ranks."""
    from stepladder.job.opening.run_folder import choose_folder
    from stepladder.plan.automatic import automatic_words, written_plan

    plan = written_plan(options.plan) if options.plan else recipe.plan_choice()
    layout = start.settle(plan, recipe)
    if layout and not automatic_words(options.plan):
        print(layout, file=sys.stderr if options.json else sys.stdout, flush=True)
    folder = choose_folder(recipe, elastic=options.elastic or start.nodes is not None)
    words = ["-m", "stepladder.cli.rank", "train", *([options.model] if options.model else [])]
    words += ["--plan", options.plan] if options.plan else []
    words += ["--json"] if options.json else []
    words += [*options.settings, "--run.folder", str(folder), "--elastic"]
    return start.launch(words, recipe, folder)


def train(options: argparse.Namespace) -> int:
    """Train as the one rank that this process is."""
    with loading():
        from stepladder import job
        from stepladder.cli.training_display import JsonDisplay, TerminalDisplay
        from stepladder.world import signal_exit_code

    display = JsonDisplay() if options.json else TerminalDisplay()
    result = job.train(
        options.model,
        settings=options.settings,
        plan=options.plan,
        elastic=options.elastic,
        display=display,
    )
    return signal_exit_code(result.stopped_by) if result.stopped else 0
