"""`launch`: what `stepladder launch` does, as a function that a program can call."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TextIO, get_args

from stepladder.errors import PlanError, nearest, require_type

from .launch_options import LaunchRequest, start_script
from .launch_targets import read_place
from .main import run_command
from .rank_options import read_nodes

Place = Literal["local", "ssh", "slurm", "kubernetes", "ray"]
PLACES: tuple[str, ...] = get_args(Place)


@dataclass(frozen=True, slots=True)
class Launch:
    """A run that was started elsewhere, or what would be submitted."""

    on: str
    folder: str  # of the run, where it is known before it starts
    text: str  # exactly what is submitted
    exit_code: int | None = None  # None: nothing was started


def launch(
    what: str | Path | None = None,
    *,
    on: Place = "local",
    nodes: int | str | None = None,
    ranks_per_node: int | None = None,
    restarts: int | None = None,
    plan: str | None = None,
    settings: Sequence[str] = (),
    arguments: Sequence[str] = (),
    rendezvous: str | None = None,
    gpus_per_node: int | None = None,
    cpus_per_node: int | None = None,
    memory_per_node: str | None = None,
    python: str | None = None,
    hosts: Sequence[str] = (),
    ssh: str | None = None,
    partition: str | None = None,
    account: str | None = None,
    time: str | None = None,
    sbatch: Sequence[str] = (),
    sweep: Sequence[str] = (),
    kind: str | None = None,
    image: str | None = None,
    namespace: str | None = None,
    claim: str | None = None,
    storage: str | None = None,
    shared_memory: str | None = None,
    detach: bool = False,
    dry_run: bool = False,
) -> Launch:
    """Start a run on this machine, on machines by ssh, or with Slurm, Kubernetes or Ray.

    Args:
        what: RUN.toml, a model such as file.py:make, or script.py; None: the built-in run.
        nodes: machines, such as 2 or "1:4" where some may leave and come back.
        plan: such as "bf16 zero3"; a script has its own.
        settings: keys of the recipe, such as ["--train.steps", "50"].
        arguments: of a script.
        hosts, ssh: for ssh.
        partition, account, time, sbatch, sweep: for slurm.
        kind, image, namespace, claim, storage, shared_memory: for kubernetes.
        detach: submit, and do not follow.
        dry_run: only return what would be submitted.

    >>> import stepladder as sl
    >>> planned = sl.launch(on="slurm", nodes=2, gpus_per_node=8, plan="bf16 zero3", dry_run=True)
    >>> "#SBATCH --nodes=2" in planned.text, planned.exit_code
    (True, None)
    """
    given = dict(locals())
    if on not in PLACES:
        raise PlanError("on", f"'{on}' is not a place to start a run", nearest(on, PLACES))
    require_type("what", what, (str, Path, type(None)), "Name a recipe, a model or a script.")
    for name in ("settings", "arguments", "hosts", "sbatch", "sweep"):
        require_type(name, given[name], (list, tuple), "Give a list of texts.")
    words = {name: text_of(value) for name, value in given.items()}
    lists = {"settings": list(settings), "sbatch": list(sbatch), "sweep": list(sweep)}
    joined = {"hosts": ",".join(hosts), "arguments": shlex.join(arguments)}
    switches = {"detach": detach, "dry_run": dry_run, "json": False}
    return start_launch(argparse.Namespace(**{**words, **lists, **joined, **switches}), sys.stdout)


def start_launch(options: argparse.Namespace, stream: TextIO) -> Launch:
    """Start the run that the options of `stepladder launch` ask for; `stream` takes its output."""
    request = LaunchRequest.read(options)
    if options.on == "local":
        return launch_here(options, request)
    place = read_place(options, request)
    folder, text = str(place.request.folder), place.text()
    if options.dry_run:
        return Launch(options.on, folder, text)
    return Launch(options.on, folder, text, place.start(tell, stream, detach=options.detach))


def launch_here(options: argparse.Namespace, request: LaunchRequest) -> Launch:
    """On this machine: a recipe by `stepladder train`, a script by the launcher under it."""
    words = request.local_words()
    text = shlex.join([sys.executable, "-m", "stepladder.cli.main", *words]) + "\n"
    folder = request.recipe.run.folder
    if options.dry_run:
        read_nodes(options, request.recipe)
        request.check_plan()
        return Launch("local", folder, text)
    if words[0] == "train":
        code = run_command("train", [*words[1:], *(["--json"] * options.json)])
    else:
        code = start_script(options)
    return Launch("local", folder, text, code)


def text_of(value: object) -> str | None:
    """A number or a path as the command line would have it."""
    return None if value is None else str(value)


def tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
