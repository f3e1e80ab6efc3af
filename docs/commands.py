"""Writes the tables of docs/commands.md: `python docs/commands.py` (a test holds the page to them).

Options and their meaning are those of each command's own parser, so they are what `--help` prints.
What the page says besides, and its examples, are written by hand.
"""

from __future__ import annotations

import argparse
import importlib
import re
from pathlib import Path

from stepladder.cli.main import COMMANDS

PAGE = Path(__file__).parent / "commands.md"
ASKED = re.compile(r"<!-- command: (\w+) -->\n.*?<!-- end -->", re.DOTALL)
OWN_CODE = "your own code"  # options that every command with a MODEL has: the page has them once
COMMON = ("--data", "--sample", "--loss")
SAID = {  # where the parser has a few words, for a terminal's width, or none
    "--json": "print JSON for programs",
    "--device": "`auto`, `cpu` or `cuda`",
    "--ranks": "start N ranks on this machine",
    "--restarts": "start ranks that fail again, up to K times; 3 by default",
    "doctor --limit": "the time that each check may take; 180 by default",
    "doctor --quick": "leave out torch.compile, the slowest check",
    "doctor --device": "instead: the memory and the multiprocessors of a device of the table, such "
    "as `H100-80GB`, or of this machine, `here`",
    "doctor --block": "with `--device`: how many of these blocks of a kernel fit one "
    "multiprocessor, such as `threads=256 registers=64 shared=48KiB`",
    "plan --on": "the cluster, such as `8 nodes x 8 H100-80GB`, or `here` for this machine",
    "plan --batch": "search for the fastest plan with this global batch, in sequences",
    "plan --sequence": "tokens of a sequence",
    "plan --plan": "forecast this plan, such as `bf16 zero3 micro=2`, instead of searching",
    "plan --from-deepspeed": "forecast the plan that a DeepSpeed file asks for",
    "plan --from-accelerate": "forecast the plan that an Accelerate file asks for",
    "plan --samples": "price the training of so many tokens, or samples of images: `1e12`",
    "plan --grid": "grams of CO2 per kWh; 445, the world's average, by default",
    "plan --calibration": "use the measurements that `stepladder calibrate` wrote to this file",
    "plan --all": "list every other plan, with the reason why it loses",
    "plan --save": "write the plan as a file that `stepladder train` reads",
    "plan --page": "open the planner as a page with sliders; nothing else need be given",
    "plan --port": "the port of the page, 8687 by default; 0 takes any that is free",
    "plan --open": "open the page in this machine's browser",
    "train --nodes": "how many machines run this command; they may leave and return",
    "train --rendezvous": "the address at which the machines meet: one of them",
    "train --elastic": "resume what run.folder holds, with the plan fitted to the ranks",
    "train --plan": "the plan, such as `bf16 micro=4 recompute=blocks`",
    "train --json": "print only the final figures, as JSON",
    "launch what": "a recipe, your own model (`file.py:make`) or a script",
    "launch --on": "where to run; `local` by default",
    "launch --nodes": "machines, 1 by default; with a range they may leave and return",
    "launch --ranks-per-node": "ranks of each machine; as many as it has GPUs, or 1, by default",
    "launch --plan": "the plan, such as `bf16 zero3`",
    "launch --arguments": "the arguments of a script, such as `--lr 0.1`",
    "launch --rendezvous": "local and ssh: the address at which the machines meet",
    "launch --gpus-per-node": "GPUs to ask for on each machine",
    "launch --cpus-per-node": "CPU cores to ask for on each machine; one a rank by default",
    "launch --memory-per-node": "memory to ask for on each machine, such as `64GiB`",
    "launch --python": "the Python on the machines; the path of this one by default",
    "launch --hosts": "ssh: the machines; the first one is the rendezvous",
    "launch --ssh": "ssh: the command, such as `ssh -p 2222`",
    "launch --partition": "Slurm: the partition",
    "launch --account": "Slurm: the account",
    "launch --time": "Slurm: the time limit, such as `12:00:00`",
    "launch --sbatch": "Slurm: any further option, such as `--sbatch=--qos=high`",
    "launch --sweep": "Slurm: a job array with a run for each value",
    "launch --kind": "Kubernetes: `job`, `pytorchjob` or `trainjob`",
    "launch --image": "Kubernetes: a container image with stepladder in it",
    "launch --namespace": "Kubernetes: the namespace; `default` by default",
    "launch --claim": "Kubernetes: an existing persistent volume claim for the run's folder",
    "launch --storage": "Kubernetes: the size of a new claim; 100GiB by default",
    "launch --shared-memory": "Kubernetes: the size of /dev/shm; 16GiB by default",
    "launch --detach": "Slurm and Kubernetes: do not follow the job",
    "calibrate --out": "write the measurements to this file instead of the cache folder",
    "calibrate --seconds": "the time that it may take; 90 by default",
    "calibrate --json": "print everything that was measured, as JSON",
    "profile --plan": "the plan, such as `bf16 micro=4 recompute=blocks`",
    "profile --steps": "profiled steps; 4 by default",
    "profile --memory": "track the memory over one more step, by owner",
    "profile --plot": "draw the causes beside their forecast",
    "verify what": "what to prove",
    "verify --reference": "precision: the one to compare with; `fp32` by default",
    "verify --other": "precision: the one to compare; `bf16` by default",
    "verify --operations": "precision: print which operation runs in which type",
    "verify --gradients": "precision: print each layer's gradients, with advice",
    "verify --plans": "the plans, such as `fp32 zero3 shard=2; fp32 tensor=2`",
    "verify --steps": "steps of every run",
    "verify --optimizer": "the optimizer; for parity it may be given several times",
    "verify --device": "the device of all runs; the CPU by default",
    "verify --plot": "draw the differences over the steps",
    "verify --plan": "resume: the plan",
    "verify --then": "resume: continue in these plans, such as `fp32 zero3 shard=2; fp32`",
    "verify --locate": "parity: name the first tensor that differs",
    "verify --certificate": "parity: write a file from which another machine can replay this",
    "verify --ranks": "resume: ranks of the plans that are resumed",
    "verify --workers": "resume: workers that read ahead, `2` or `2 processes`",
    "report --output": "the file to write; RUN/report.html by default",
    "report --png": "the folder for the plots; RUN/report by default",
    "report --json": "print what the page says, as JSON",
    "watch runs": "folders of runs, or folders that contain such folders",
    "watch --host": "the address to serve; any but 127.0.0.1 needs the token that is printed",
    "watch --port": "the port, 8686 by default; 0 takes any that is free",
    "checkpoint what": "what to do with it",
    "checkpoint path": "the folder of a run, or a checkpoint",
    "checkpoint --to": "convert: the format to write; `huggingface` by default",
    "checkpoint --dtype": "convert: the type in which to store floating-point tensors",
    "checkpoint --shard": "convert: the size of the largest file; 5 by default",
    "course unit": "the unit to show, by its name, or `next`; without it, the list",
    "course --answer": "grade an answer to the unit's checklist; may be given several times",
    "lab what": "what to do; `list` if nothing is given",
    "lab name": "a lab, by its name in the list",
    "lab file": "the file with your solution; after `predict`, your number",
    "lab --by": "race: what decides; `time` by default",
    "bench name": "which table to measure",
    "bench --batch": "samples of a step; for `batch`, the largest that is tried",
    "bench --sequence": "tokens of a sample",
    "bench --plan": "words that all rows share",
    "bench --steps": "timed steps of each row; 10 by default, 64 for `learning-rate`, 150 "
    "for `compression-curves`",
    "bench --times": "learning-rate: how many times larger the batch becomes; 8 by default",
    "bench --optimizer": "the optimizer: learning-rate (SGD and AdamW), compression-curves (SGD)",
    "bench --ranks": "local ranks; 2 by default",
    "bench --largest": "collectives and ring: the largest message; 65536 by default",
    "bench --keep": "collectives: let forecasts use the latency and rate that were measured",
    "bench --budget": "walls: the memory that a rank may use; two thirds of what plain DDP needs "
    "by default",
    "completion shell": "the shell to complete in",
    "completion --line": "print how this line may go on; the shell calls it",
}


def parser(command: str) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog=f"stepladder {command}")
    importlib.import_module(f"stepladder.cli.commands.{command}").configure(made)
    return made


def actions(command: str) -> list[argparse.Action]:
    """The options of a command that are its own."""
    return [
        action
        for action in parser(command)._actions
        if not isinstance(action, argparse._HelpAction)
        and not set(COMMON) & set(action.option_strings)
    ]


def takes_code(command: str) -> bool:
    return any(group.title == OWN_CODE for group in parser(command)._action_groups)


def written(action: argparse.Action) -> str:
    """How it is typed: `--on CLUSTER`; a word without dashes by its place."""
    if action.choices and len(list(action.choices)) < 10:
        value = "|".join(map(str, action.choices))
    else:
        value = str(action.metavar or action.dest.upper())
    if not action.option_strings:
        return value
    return ", ".join(action.option_strings) + ("" if action.nargs == 0 else f" {value}")


def meaning(command: str, action: argparse.Action) -> str:
    name = action.option_strings[-1] if action.option_strings else action.dest
    said = SAID.get(f"{command} {name}") or SAID.get(name) or action.help
    assert said, f"{command} {name}: nobody says what it means"
    plain = re.sub(r"(?<!\w)'([^']+)'", r"`\1`", said)
    assert by_default(action) in plain, f"{command} {name}: {action.default} is not said"
    return plain


def by_default(action: argparse.Action) -> str:
    """What a meaning must say of its default; empty where it has none."""
    if action.default in (None, False, "", "auto", "127.0.0.1", argparse.SUPPRESS):
        return ""
    number = isinstance(action.default, float) and action.default.is_integer()
    return str(int(action.default) if number else action.default)


def cell(text: str) -> str:
    return text.replace("|", "\\|")


def table(command: str) -> str:
    rows = [
        f"| `{cell(written(action))}` | {cell(meaning(command, action))} |"
        for action in actions(command)
    ]
    extra = []
    if parser(command).get_default("settings"):
        extra.append(
            "| `--SECTION.KEY VALUE` | any [key of a recipe](words.md#a-recipe), such as "
            "`--train.steps 100` |"
        )
    if takes_code(command):
        extra.append("| `--data`, `--sample`, `--loss` | [your own code](#your-own-code) |")
    return "\n".join(["| option | meaning |", "|---|---|", *rows, *extra])


def filled(page: str) -> str:
    """The page with every table of options written anew."""
    return ASKED.sub(lambda m: f"<!-- command: {m[1]} -->\n{table(m[1])}\n<!-- end -->", page)


def named(page: str) -> list[str]:
    """The commands that the page has a table of."""
    return ASKED.findall(page)


def main() -> None:
    PAGE.write_text(filled(PAGE.read_text()))


if __name__ == "__main__":
    assert set(named(PAGE.read_text())) == set(COMMANDS)
    main()
