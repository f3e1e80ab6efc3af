"""`train --ranks N`: what is settled before the first of several ranks is started."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

from stepladder.errors import PlanError, RecordError, raise_all
from stepladder.launch import launch_local
from stepladder.plan import REST, Layout, Plan, Recipe, composition_problems
from stepladder.planner import problems
from stepladder.workload import Facts, find_facts
from stepladder.world import Place, detect_cluster


def start_ranks(options: argparse.Namespace, recipe: Recipe, plan: Plan | None) -> int:
    """Start the command again on N ranks, once it is known that its plan can be N ranks."""
    place = Place.from_environment()
    if place.launched:
        raise PlanError(
            "ranks",
            f"{options.ranks} asked for in a process that is one of {place.num_ranks} already",
            "Leave --ranks out; the launcher has started them.",
        )
    chosen = spread(plan or Plan(), options.ranks)
    batch = replace(chosen.batch, sequences=chosen.batch.sequences or recipe.train.batch)
    settled = legal(replace(chosen, batch=batch), recipe, options.ranks)
    if chosen != (plan or chosen):
        said = (
            f"The plan names no layout: data parallel on {options.ranks} ranks, {settled.layout}."
        )
        print(said, file=sys.stderr if options.json else sys.stdout, flush=True)
    folder = choose_folder(recipe)
    words = ["-m", "stepladder.cli.rank", "train", *([options.recipe] if options.recipe else [])]
    words += ["--plan", options.plan] if options.plan else []
    words += ["--json"] if options.json else []
    words += [*options.settings, "--run.folder", str(folder)]
    return launch_local(words, ranks=options.ranks, folder=folder)


def legal(plan: Plan, recipe: Recipe, ranks: int) -> Plan:
    """The plan for so many ranks, or every rule it breaks, before any of them is started."""
    facts = facts_of_model(recipe)
    if facts is None:
        return plan.settle(ranks)
    cluster = detect_cluster(processes=ranks)
    # On a processor offloading has nowhere to go to, which is no reason not to try it out there.
    tried_out = cluster.device.is_cpu
    found = problems(facts, replace(plan, offload=()) if tried_out else plan, cluster)
    if tried_out:
        found += [one for one in composition_problems(plan) if one.field == "offload"]
    raise_all(found)
    return plan.settle(ranks)


def facts_of_model(recipe: Recipe) -> Facts | None:
    """What is known of the recipe's model by its name alone."""
    try:
        return find_facts(recipe.model.name, recipe.model.sequence)
    except PlanError:  # not among the shapes: the ranks find out what it is
        return None


def spread(plan: Plan, ranks: int) -> Plan:
    """A plan for several ranks: data parallel over all of them where it names no axis."""
    if ranks == 1 or plan.layout != Layout():
        return plan
    return replace(plan, layout=Layout(replicate=REST))


def facts_of(recipe: Recipe, plan: Plan | None) -> dict[str, str]:
    """What every rank must have been given alike: all of the recipe but the folder's name."""
    sections = {name: values for name, values in asdict(recipe).items() if name != "plan"}
    facts = {
        f"{section}.{key}": str(value)
        for section, values in sections.items()
        for key, value in values.items()
        if (section, key) != ("run", "folder")
    }
    return {"plan": str(plan) if plan else "auto", **facts}


def choose_folder(recipe: Recipe) -> Path:
    """Where the run is kept: never where another run already is, unless it shall go on."""
    folder = Path(recipe.run.folder or time.strftime("runs/%Y-%m-%d-%H%M%S"))
    if (folder / "latest").exists() and not recipe.run.resume:
        raise RecordError(
            "run.folder",
            f"{folder} holds a run already",
            "Add --run.resume true to go on with it, or name another folder.",
        )
    return folder
