"""`train --ranks N`: what is settled before the first of several ranks is started."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from stepladder.errors import PlanError, RecordError, raise_all
from stepladder.launch import launch_local, parse_nodes
from stepladder.launch.local.rendezvous import Nodes
from stepladder.plan import Layout, Plan, Recipe, composition_problems, read_recipe
from stepladder.plan.layout import REST
from stepladder.plan.refit import refit
from stepladder.planner import problems
from stepladder.record import read_journal
from stepladder.workload import Facts, find_facts
from stepladder.world import Place, Stop, detect_cluster

RESTARTS = 3
UNREAD = ("workers", "faults", "longest")  # choices of data that change no sample


@dataclass(frozen=True, slots=True)
class Start:
    """How many ranks are started here, among which machines, how often again."""

    ranks: int
    restarts: int
    nodes: Nodes | None
    by_launcher: bool  # else this process is the one rank

    @classmethod
    def read(cls, options: argparse.Namespace, recipe: Recipe) -> Start:
        ranks = number("ranks", options.ranks or "1", least=1)
        restarts = number("restarts", options.restarts or str(RESTARTS), least=0)
        nodes = read_nodes(options, recipe)
        return cls(ranks, restarts, nodes, ranks > 1 or bool(nodes or options.restarts))

    @property
    def worlds(self) -> list[int]:
        """The numbers of ranks that there may be."""
        return [self.ranks * count for count in (self.nodes.counts() if self.nodes else [1])]


def number(name: str, text: str, *, least: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 7):
        raise PlanError(name, f"'{text}' is not a whole number", f"Write --{name} 2.")
    if int(text) < least:
        raise PlanError(name, f"{text} is too few", f"Use {least} or more.")
    return int(text)


def read_nodes(options: argparse.Namespace, recipe: Recipe) -> Nodes | None:
    """The machines that meet; what each of them must have been told, before it waits for others."""
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


def start_ranks(
    options: argparse.Namespace, recipe: Recipe, plan: Plan | None, start: Start
) -> int:
    """Start the command again on N ranks, once it is known that its plan can be N ranks."""
    place = Place.from_environment()
    if place.launched:
        raise PlanError(
            "ranks",
            f"{start.ranks} asked for in a process that is one of {place.num_ranks} already",
            "Leave --ranks out; the launcher has started them.",
        )
    many = start.worlds[-1]
    chosen = spread(plan or Plan(), many)
    settled = chosen
    for ranks in start.worlds:
        fitted, _ = fit_ranks(chosen, recipe, ranks, elastic=elastic(start))
        settled = legal(fitted, recipe, ranks, uneven=elastic(start))
    # Several machines would all say it; the first line of rank 0 names the layout too.
    if chosen != (plan or chosen) and start.nodes is None:
        said = f"The plan names no layout: data parallel on {many} ranks, {settled.layout}."
        print(said, file=sys.stderr if options.json else sys.stdout, flush=True)
    folder = choose_folder(recipe, elastic=options.elastic or start.nodes is not None)
    words = ["-m", "stepladder.cli.rank", "train", *([options.recipe] if options.recipe else [])]
    words += ["--plan", options.plan] if options.plan else []
    words += ["--json"] if options.json else []
    words += [*options.settings, "--run.folder", str(folder), "--elastic"]
    return launch_local(
        words,
        ranks=start.ranks,
        folder=folder,
        restarts=start.restarts,
        nodes=start.nodes,
        wait_seconds=recipe.run.timeout_seconds,
        grace_seconds=recipe.run.grace_seconds,
    )


def elastic(start: Start) -> bool:
    return start.nodes is not None and start.nodes.elastic


def fit_ranks(
    plan: Plan | None, recipe: Recipe, ranks: int, *, elastic: bool
) -> tuple[Plan | None, str]:
    """The plan for the ranks there are, and what changed where it was made for others."""
    if plan is None:
        return None, ""
    spread_out = spread(plan, ranks)
    if not elastic:
        return spread_out, ""
    size = spread_out.batch.sequences or recipe.train.batch
    fitted = refit(replace(spread_out, batch=replace(spread_out.batch, sequences=size)), ranks)
    return fitted.plan, fitted.said


def legal(plan: Plan | None, recipe: Recipe, ranks: int, *, uneven: bool) -> Plan:
    """The plan for so many ranks, or every rule it breaks, before any of them is started."""
    assert plan is not None
    size = plan.batch.sequences or recipe.train.batch
    plan = replace(plan, batch=replace(plan.batch, sequences=size))
    facts = facts_of_model(recipe)
    if uneven and plan.layout.num_ranks == ranks and size % plan.layout.data_ways:
        return plan.check()  # refitted, with shares that differ by a row
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


def choose_folder(recipe: Recipe, *, elastic: bool = False) -> Path:
    """Where the run is kept: never where another run already is, unless it shall go on."""
    folder = Path(recipe.run.folder or time.strftime("runs/%Y-%m-%d-%H%M%S"))
    if (folder / "latest").exists() and not (recipe.run.resume or elastic):
        raise RecordError(
            "run.folder",
            f"{folder} holds a run already",
            "Add --run.resume true to go on with it, or name another folder.",
        )
    return folder


def tell_restart(folder: Path, step: int, ranks: int) -> list[str]:
    """What a run that was begun before should know of this start."""
    starts = list(read_journal(folder, kind="start")) if (folder / "journal.jsonl").exists() else []
    if not starts:
        return []
    before = starts[-1].get("ranks", ranks)
    whose = f"{ranks} rank{'s' * (ranks > 1)}"
    changed = f"{whose}, {before} before" if before != ranks else whose
    return [f"start {len(starts) + 1} of this run, on {changed}: going on from step {step}"]


def tell_other_data(folder: Path, recipe: Recipe, step: int) -> list[str]:
    """Which choices that decide what is read are not those the run was begun with."""
    known = folder / "run.toml"
    if not step or not known.exists():
        return []
    try:
        before = asdict(read_recipe(known).data)
    except PlanError:  # edited since; what it was nobody knows
        return []
    now = asdict(recipe.data)
    return [
        f"data.{key} is {now[key]!r}, before it was {before[key]!r}: from step {step} on other "
        "samples are read"
        for key in now
        if now[key] != before[key] and key not in UNREAD
    ]


def tell_stop(stopped: str, stop: Stop, saved: Path) -> str:
    """How long it took to leave, against how long it may take."""
    asked = f" in {stop.seconds:.2f} s" if stop.asked else ""  # else another rank was asked
    allowed = f" (run.grace_seconds allows {stop.grace_seconds:g})"
    return f"{stopped}: {saved.name} saved{asked}{allowed}"
