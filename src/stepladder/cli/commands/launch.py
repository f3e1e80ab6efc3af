"""Start a run where you work: this machine, machines by ssh, Slurm, Kubernetes or Ray."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from stepladder.cli.results.tables import as_json
from stepladder.cli.user_code_options import configure_user_code, recipe_settings

if TYPE_CHECKING:
    from stepladder.cli.launch_call import Launch

PLACES = ("local", "ssh", "slurm", "kubernetes", "ray")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what",
        nargs="?",
        metavar="RUN.toml|MODEL|script.py",
        help="nothing: the built-in run; file.py:make is a model of yours",
    )
    configure_user_code(parser)
    parser.add_argument("--on", choices=PLACES, default="local", help="where (local)")
    parser.add_argument("--nodes", metavar="N|MIN:MAX", help="machines; a range may leave (1)")
    parser.add_argument("--ranks-per-node", metavar="M", help="processes of each (its GPUs, or 1)")
    parser.add_argument("--restarts", metavar="K", help="start lost ranks so often again (3)")
    parser.add_argument("--plan", metavar="WORDS", help="such as 'bf16 zero3'")
    parser.add_argument("--arguments", metavar="WORDS", help="of script.py, such as '--lr 0.1'")
    parser.add_argument("--rendezvous", metavar="HOST:PORT", help="local, ssh: where machines meet")
    parser.add_argument("--gpus-per-node", metavar="N", help="what each machine is to have")
    parser.add_argument("--cpus-per-node", metavar="N", help="(one a rank)")
    parser.add_argument("--memory-per-node", metavar="SIZE", help="such as 64GiB")
    parser.add_argument("--python", metavar="PATH", help="of the machines (this one)")
    parser.add_argument("--hosts", metavar="A,B", help="ssh: the machines, the first one leads")
    parser.add_argument("--ssh", metavar="COMMAND", help="ssh: such as 'ssh -p 2222' (ssh)")
    parser.add_argument("--partition", metavar="NAME", help="slurm")
    parser.add_argument("--account", metavar="NAME", help="slurm")
    parser.add_argument("--time", metavar="TIME", help="slurm: such as 12:00:00")
    parser.add_argument(
        "--sbatch", metavar="OPTION", action="append", help="slurm: such as --sbatch=--qos=high"
    )
    parser.add_argument(
        "--sweep", metavar="KEY=A,B", action="append", help="slurm: a job array, a run for each"
    )
    parser.add_argument("--kind", metavar="KIND", help="kubernetes: job, pytorchjob or trainjob")
    parser.add_argument("--image", metavar="IMAGE", help="kubernetes: with stepladder in it")
    parser.add_argument("--namespace", metavar="NAME", help="kubernetes (default)")
    parser.add_argument("--claim", metavar="NAME", help="kubernetes: a claim that is there")
    parser.add_argument("--storage", metavar="SIZE", help="kubernetes: of a new claim (100GiB)")
    parser.add_argument("--shared-memory", metavar="SIZE", help="kubernetes: /dev/shm (16GiB)")
    parser.add_argument("--detach", action="store_true", help="slurm, kubernetes: do not follow")
    parser.add_argument("--dry-run", action="store_true", help="only print what would be submitted")
    parser.add_argument("--json", action="store_true", help="the outcome as JSON")
    parser.set_defaults(settings=True)
    parser.epilog = (
        "Keys of the recipe as in 'stepladder train': --train.steps 50 --run.folder DIR, which "
        "every machine must see."
    )


def run(options: argparse.Namespace) -> int:
    # Read when torch is loaded. What its store has to say of machines that leave, we say.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    from stepladder.cli.launch_call import start_launch

    options.settings = recipe_settings(options)
    found = start_launch(options, sys.stderr if options.json else sys.stdout)
    if found.exit_code is None:
        show_text(found, json=options.json)
        return 0
    if options.json and found.on != "local":  # there the run itself prints its outcome
        show_outcome(found)
    return found.exit_code


def show_text(found: Launch, *, json: bool) -> None:
    """What would be submitted."""
    if json:
        folder = "" if found.on == "local" else found.folder
        as_json({"on": found.on, "folder": folder, "submits": found.text})
    else:
        print(found.text, end="")


def show_outcome(found: Launch) -> None:
    """How a run ended that was followed elsewhere, with the figures that its folder holds."""
    from stepladder.record import read_journal

    folder = Path(found.folder)
    kept = (folder / "journal.jsonl").exists()
    summaries = list(read_journal(folder, kind="summary")) if kept else []
    figures = summaries[-1] if summaries else {}
    as_json(
        {"on": found.on, "folder": found.folder, "exit code": found.exit_code, "figures": figures}
    )
