"""`launch --on ssh | slurm | kubernetes | ray`: a run as the job that its target is given."""

from __future__ import annotations

import argparse
import itertools
import re
import sys
from pathlib import Path, PurePosixPath

from stepladder.cli.rank_options import read_number
from stepladder.errors import PlanError, nearest, raise_all
from stepladder.job.opening.run_folder import choose_folder
from stepladder.launch import (
    KubernetesChoice,
    OnKubernetes,
    OnSlurm,
    RemoteLauncher,
    Request,
    Resources,
    SlurmChoice,
)
from stepladder.launch.kubernetes.manifests import CHECKPOINTS, FILES, KINDS
from stepladder.launch.launchers import OnHosts, OnRay
from stepladder.launch.run_request import read_bytes
from stepladder.launch.ssh.ssh_hosts import parse_hosts
from stepladder.plan import Recipe, read_recipe
from stepladder.plan.reference import Reference

from .launch_options import LaunchRequest


def read_place(options: argparse.Namespace, asked: LaunchRequest) -> RemoteLauncher:
    """The place, with all it is to be given."""
    asked.check_plan()
    resources = Resources(
        gpus=read_number("gpus-per-node", options.gpus_per_node or "0", least=0),
        cpus=read_number("cpus-per-node", options.cpus_per_node, least=1)
        if options.cpus_per_node
        else 0,
        memory_bytes=size(options, "memory_per_node", 0),
    )
    if options.on == "kubernetes":
        return on_kubernetes(options, asked, resources)
    request = request_here(options, asked, resources)
    if options.on == "slurm":
        return on_slurm(options, asked, request)
    if options.on == "ray":
        return OnRay(request)
    if not options.hosts:
        raise PlanError("hosts", "missing", "Name the machines: --hosts a,b.")
    hosts = parse_hosts(options.hosts, options.ssh or "", options.rendezvous or "")
    if asked.most != len(hosts.names):
        raise PlanError(
            "nodes",
            f"{asked.most} machines, and --hosts names {len(hosts.names)}",
            "Leave --nodes out, or name as many as may come.",
        )
    return OnHosts(request, hosts)


def size(options: argparse.Namespace, name: str, default: int) -> int:
    text = getattr(options, name)
    return read_bytes(name.replace("_", "-"), text) if text else default


def request_here(
    options: argparse.Namespace, asked: LaunchRequest, resources: Resources
) -> Request:
    """For machines that see this one's files."""
    folder = choose_folder(asked.recipe).absolute()
    what = str(Path(asked.what).absolute()) if asked.is_file else asked.what
    words = ["-m", "stepladder.cli.main", *asked.launcher_words(what)]
    named = [] if options.sweep else ["--run.folder", str(folder)]
    again = [] if asked.script else ["--elastic"]
    return Request(
        words=(*words, *again, *named),
        rank_words=tuple(asked.rank_words(what, str(folder))),
        folder=folder,
        directory=Path.cwd(),
        python=options.python or sys.executable,
        least=asked.least,
        most=asked.most,
        ranks=asked.ranks,
        restarts=asked.restarts,
        grace_seconds=asked.recipe.run.grace_seconds,
        resources=resources,
    )


def on_slurm(options: argparse.Namespace, asked: LaunchRequest, request: Request) -> OnSlurm:
    choice = SlurmChoice(
        partition=options.partition or "",
        account=options.account or "",
        time=options.time or "",
        sbatch=tuple(options.sbatch or ()),
        points=tuple(read_sweep(options, asked)),
    )
    return OnSlurm(request, choice)


def read_sweep(options: argparse.Namespace, asked: LaunchRequest) -> list[tuple[str, ...]]:
    """The settings of each run of a sweep: every value of a key with every value of the others."""
    axes = []
    for text in options.sweep or ():
        key, equals, values = text.partition("=")
        if not equals or "." not in key or not all(values.split(",")):
            problem = f"'{text}' is not a key and its values"
            raise PlanError("sweep", problem, "Write --sweep optimizer.lr=1e-3,3e-3.")
        axes.append([(f"--{key}", value) for value in values.split(",")])
    points = [tuple(itertools.chain(*point)) for point in itertools.product(*axes)] if axes else []
    for point in points:
        read_recipe(asked.what or None, [*options.settings, *point])
    return points


def on_kubernetes(
    options: argparse.Namespace, asked: LaunchRequest, resources: Resources
) -> OnKubernetes:
    """For pods, which see nothing of this machine: the file goes along, the folder is theirs."""
    if not options.image:
        problem = "missing: pods run what an image holds"
        raise PlanError("image", problem, "Name one with stepladder in it: --image REPOSITORY/IT.")
    kind = options.kind or KINDS[0]
    if kind not in KINDS:
        raise PlanError("kind", f"'{kind}' is not one", nearest(kind, KINDS))
    refuse_own_files(asked.recipe)
    key = re.sub(r"[^A-Za-z0-9._-]", "-", Path(asked.what).name)  # letters of a ConfigMap's key
    file = (key, read_text(asked.what)) if asked.is_file else None
    what = f"{FILES}/{file[0]}" if file else asked.what
    folder = PurePosixPath(CHECKPOINTS) / (Path(asked.recipe.run.folder).name or "run")
    again = [] if asked.script else ["--elastic"]
    words = ["-m", "stepladder.cli.main", *asked.launcher_words(what), *again]
    request = Request(
        words=(*words, "--run.folder", str(folder)),
        rank_words=(),
        folder=Path(folder),
        directory=Path(CHECKPOINTS),
        python=options.python or "python",
        least=asked.least,
        most=asked.most,
        ranks=asked.ranks,
        restarts=asked.restarts,
        grace_seconds=asked.recipe.run.grace_seconds,
        resources=resources,
    )
    choice = KubernetesChoice(
        image=options.image,
        kind=kind,
        namespace=options.namespace or "default",
        claim=options.claim or "",
        storage_bytes=size(options, "storage", 100 * 2**30),
        shared_memory_bytes=size(options, "shared_memory", 16 * 2**30),
        file=file,
    )
    return OnKubernetes(request, choice)


def refuse_own_files(recipe: Recipe) -> None:
    """Refuse the user's own files that a recipe names: an image has modules."""
    named = {
        "model.name": recipe.model.name,
        "data.source": recipe.data.source,
        "data.sample": recipe.data.sample,
        "train.loss": recipe.train.loss,
    }
    raise_all(
        PlanError(
            key,
            f"{text} is a file of this machine, and pods see none of them",
            "Put it into the image, and write package.module:name.",
        )
        for key, text in named.items()
        if (found := Reference.parse(text)) and found.is_file
    )


def read_text(path: str) -> str:
    try:
        return Path(path).read_text()
    except (OSError, UnicodeDecodeError) as refused:
        why = getattr(refused, "strerror", None) or "it is not text"
        raise PlanError(
            "run file", f"{path} cannot be read ({why})", "Check its name."
        ) from refused
