"""The options that start several ranks: --ranks, --restarts, --nodes and --rendezvous."""

from __future__ import annotations

import argparse

from stepladder.errors import PlanError
from stepladder.job.opening.start_ranks import RESTARTS, RankStart
from stepladder.launch import parse_nodes
from stepladder.launch.local.rendezvous import Nodes
from stepladder.plan import Recipe


def read_rank_start(options: argparse.Namespace, recipe: Recipe) -> RankStart | None:
    """How ranks are to be started; None where this process is to be the one rank itself."""
    ranks = read_number("ranks", options.ranks or "1", least=1)
    restarts = read_number("restarts", options.restarts or str(RESTARTS), least=0)
    nodes = read_nodes(options, recipe)
    needs_launcher = ranks > 1 or bool(nodes or options.restarts)
    return RankStart(ranks, restarts, nodes) if needs_launcher else None


def read_number(name: str, text: str, *, least: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 7):
        raise PlanError(name, f"'{text}' is not a whole number", f"Write --{name} 2.")
    if int(text) < least:
        raise PlanError(name, f"{text} is too few", f"Use {least} or more.")
    return int(text)


def read_nodes(options: argparse.Namespace, recipe: Recipe) -> Nodes | None:
    """The machines that meet; each must have been given both options and a shared folder."""
    if not (options.nodes or options.rendezvous):
        return None
    if not options.nodes or not options.rendezvous:
        given, missing = ("nodes", "rendezvous") if options.nodes else ("rendezvous", "nodes")
        raise PlanError(
            missing,
            f"missing, while --{given} is given",
            "Write both on every machine: --nodes 1:2 --rendezvous HOST:29400.",
        )
    if not recipe.run.folder:
        raise PlanError(
            "run.folder",
            "has no name, and machines that meet need the same one",
            "Add --run.folder DIR, a folder that every machine sees.",
        )
    return parse_nodes(options.nodes, options.rendezvous, run_id=recipe.run.folder)
