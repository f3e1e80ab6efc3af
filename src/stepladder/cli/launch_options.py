"""`launch`: what a user asks for, read and checked before anything is submitted."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from stepladder.cli.rank_options import read_nodes, read_number
from stepladder.errors import PlanError, raise_all
from stepladder.job.opening.plan_for_ranks import fit_ranks, spread
from stepladder.job.opening.run_folder import choose_folder
from stepladder.job.opening.start_ranks import RESTARTS
from stepladder.launch import launch_local, parse_nodes
from stepladder.launch.run_request import read_words
from stepladder.plan import Plan, Recipe, read_recipe
from stepladder.plan.automatic import written_plan
from stepladder.plan.recipe import is_recipe
from stepladder.plan.settled.settle import settle

ONLY = {  # which places have an option
    "rendezvous": ("local", "ssh"),
    "hosts": ("ssh",),
    "ssh": ("ssh",),
    "partition": ("slurm",),
    "account": ("slurm",),
    "time": ("slurm",),
    "sbatch": ("slurm",),
    "sweep": ("slurm",),
    "kind": ("kubernetes",),
    "image": ("kubernetes",),
    "namespace": ("kubernetes",),
    "claim": ("kubernetes",),
    "storage": ("kubernetes",),
    "shared_memory": ("kubernetes",),
    "detach": ("slurm", "kubernetes"),
    "gpus_per_node": ("slurm", "kubernetes", "ray"),
    "cpus_per_node": ("slurm", "kubernetes", "ray"),
    "memory_per_node": ("slurm", "kubernetes", "ray"),
    "python": ("ssh", "slurm", "kubernetes", "ray"),
}


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """A run as it was asked for, wherever it is to go."""

    what: str  # the file; empty: the built-in run
    script: bool
    recipe: Recipe
    settings: tuple[str, ...]  # but for the folder's
    plan: str
    arguments: tuple[str, ...]
    least: int
    most: int
    meeting: tuple[str, ...]  # as it was written, for this machine's own launcher
    ranks: int
    restarts: int

    @classmethod
    def read(cls, options: argparse.Namespace) -> LaunchRequest:
        raise_all(misplaced(options))
        script = (options.what or "").endswith(".py")
        recipe = read_recipe(None if script else options.what, options.settings)
        raise_all(script_problems(options) if script else recipe_problems(options))
        hosts = len(options.hosts.split(",")) if options.hosts else 1
        machines = parse_nodes(options.nodes or str(hosts), "any:1", "")
        gpus = read_number("gpus-per-node", options.gpus_per_node or "0", least=0)
        asked = options.ranks_per_node or str(gpus or 1)
        given = (("--nodes", options.nodes), ("--rendezvous", options.rendezvous))
        return cls(
            what=options.what or "",
            script=script,
            recipe=recipe,
            settings=tuple(without_folder(options.settings)),
            plan=options.plan or "",
            arguments=tuple(read_words("arguments", options.arguments or "")),
            least=machines.least,
            most=machines.most,
            meeting=tuple(word for pair in given if pair[1] for word in pair),
            ranks=read_number("ranks-per-node", asked, least=1),
            restarts=read_number("restarts", options.restarts or str(RESTARTS), least=0),
        )

    @property
    def is_file(self) -> bool:
        """Whether it is a file that was named, and not a model."""
        return self.script or (bool(self.what) and is_recipe(self.what))

    def launcher_words(self, what: str) -> list[str]:
        """Of one machine's launcher, after the command's own name; without folder and meeting."""
        common = ["--restarts", str(self.restarts), *self.settings]
        if self.script:
            said = [f"--arguments={shlex.join(self.arguments)}"] if self.arguments else []
            ranks = ["--ranks-per-node", str(self.ranks)]
            return ["launch", "--on", "local", what, *ranks, *common, *said]
        words = ["train", *([what] if what else []), "--ranks", str(self.ranks), *common]
        return [*words, *(["--plan", self.plan] if self.plan else [])]

    def local_words(self) -> list[str]:
        folder = self.recipe.run.folder
        named = ["--run.folder", folder] if folder else []
        return [*self.launcher_words(self.what), *self.meeting, *named]

    def rank_words(self, what: str, folder: str) -> list[str]:
        """Of one rank, for a place that starts the ranks itself."""
        if self.script:
            return [what, *self.arguments]
        words = ["-m", "stepladder.cli.rank", "train", *([what] if what else [])]
        words += ["--plan", self.plan] if self.plan else []
        return [*words, *self.settings, "--run.folder", folder, "--elastic"]

    def check_plan(self) -> None:
        """Every number of ranks that may be must be one the plan can have."""
        if self.script:
            return
        chosen = written_plan(self.plan) if self.plan else self.recipe.plan_choice() or Plan()
        elastic = self.least < self.most
        for machines in range(self.least, self.most + 1):
            ranks = machines * self.ranks
            fitted, _ = fit_ranks(spread(chosen, ranks), self.recipe, ranks, elastic=elastic)
            assert fitted is not None
            size = fitted.batch.sequences or self.recipe.train.batch
            sized = replace(fitted, batch=replace(fitted.batch, sequences=size))
            # A refitted plan may have shares that differ by a row.
            settle(sized, ranks, open_batch=elastic)


def misplaced(options: argparse.Namespace) -> list[PlanError]:
    """Options of other places than the one that was named."""
    return [
        PlanError(
            name.replace("_", "-"),
            f"is no option of --on {options.on}",
            f"Use it with --on {' or '.join(places)}.",
        )
        for name, places in ONLY.items()
        if getattr(options, name) and options.on not in places
    ]


def script_problems(options: argparse.Namespace) -> list[PlanError]:
    """What a script of one's own settles itself."""
    found = []
    if not Path(options.what).exists() and options.on != "kubernetes":
        found.append(PlanError("script", f"there is no {options.what}", "Check its name."))
    if options.plan or options.sweep:
        name = "plan" if options.plan else "sweep"
        remedy = "Hand it over with --arguments."
        found.append(PlanError(name, f"is not for a script: {options.what} has its own", remedy))
    for key, _ in pairs(options.settings):
        if not key.startswith("run."):
            problem = f"is a key of recipes, and {options.what} is a script"
            found.append(PlanError(key, problem, "Hand it over with --arguments."))
    return found


def recipe_problems(options: argparse.Namespace) -> list[PlanError]:
    if not options.arguments:
        return []
    remedy = "Set keys instead: --train.steps 50."
    return [PlanError("arguments", "are for a script, and this is a recipe", remedy)]


def pairs(settings: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Each key of `--key value` and `--key=value`, with the words it was given in."""
    rest = list(settings)
    while rest:
        word = rest.pop(0)
        name, equals, _ = word.partition("=")
        yield name.removeprefix("--"), [word] if equals else [word, rest.pop(0)]


def without_folder(settings: list[str]) -> list[str]:
    """Settings less the folder, which is named anew."""
    return [word for key, words in pairs(settings) if key != "run.folder" for word in words]


def start_script(options: argparse.Namespace) -> int:
    """A script on this machine's ranks; where there are several machines, among theirs."""
    request = LaunchRequest.read(options)
    run = request.recipe.run
    return launch_local(
        [request.what, *request.arguments],
        ranks=request.ranks,
        folder=choose_folder(request.recipe, elastic=True),
        restarts=request.restarts,
        nodes=read_nodes(options, request.recipe),
        wait_seconds=run.timeout_seconds,
        grace_seconds=run.grace_seconds,
    )
