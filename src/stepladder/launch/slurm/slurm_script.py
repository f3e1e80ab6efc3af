"""A run as a Slurm job: the script that sbatch is given, or srun where there are machines already.

One task a node is that node's launcher. They meet on the first node, at a port that belongs to the
job. Slurm's notices (USR1 before the time is over, TERM when the job must make room) reach the
launchers, whose ranks save and end with 143: the script then puts the job back into the queue, and
its next start goes on from there. A job that was cancelled is not put back.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stepladder.errors import PlanError, WorldError
from stepladder.launch.external_programs import ask, reason
from stepladder.launch.run_request import MIB, Request, read_words

TAKEN_OFF = 143
PORTS = (20000, 10000)  # the first, and how many there are to choose from by the job's number
TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")  # as sbatch writes it
ENDLESS = ("", "0", "infinite", "unlimited")
ADDRESS = "s/.* NodeAddr=\\([^ ]*\\).*/\\1/p"  # of a node, in what scontrol says of it


@dataclass(frozen=True, slots=True)
class SlurmChoice:
    """Options that only Slurm has."""

    partition: str = ""
    account: str = ""
    time: str = ""  # as sbatch writes it
    sbatch: tuple[str, ...] = ()  # further options, as sbatch writes them
    points: tuple[tuple[str, ...], ...] = ()  # of a sweep: the settings of each run


def script(request: Request, choice: SlurmChoice) -> str:
    """The script that sbatch is given."""
    check_time(choice.time, request.notice_seconds)
    lines = [f"#SBATCH {option}" for option in options(request, choice)]
    more: tuple[str, ...] = ()
    if choice.points:
        more = ('"${point[@]}"',)
        lines += ["", 'case "$SLURM_ARRAY_TASK_ID" in', *cases(request, choice), "esac"]
    first, count = PORTS
    meeting: tuple[str, ...] = ()
    if request.most > 1:
        lines += [
            "",
            "# The first node is where the launchers meet.",
            'first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
            f"host=$(scontrol --oneliner show node \"$first\" | sed -n '{ADDRESS}')",
            f"port=$(({first} + SLURM_JOB_ID % {count}))",
        ]
        fewest = "" if request.least == request.most else f"{request.least}:"
        meeting = request.meeting(f'{fewest}"$SLURM_JOB_NUM_NODES"', '"${host:-$first}:$port"')
    return "\n".join(
        [
            "#!/bin/bash",
            *lines,
            "",
            f"{shlex.join(srun(request))} \\",
            f"  {request.line(*meeting, *more)}",
            "code=$?",
            "# Taken off after saving: back into the queue, unless somebody cancelled the job.",
            'state=$(squeue --noheader --jobs "$SLURM_JOB_ID" --format %T)',
            f'if [ $code = {TAKEN_OFF} ] && [ "$state" = RUNNING ]; then',
            '  scontrol requeue "$SLURM_JOB_ID"',
            "fi",
            "exit $code",
            "",
        ]
    )


def check_time(text: str, notice_seconds: int) -> None:
    """Refuse a time limit that sbatch would refuse, or one shorter than the notice of its end."""
    if text.lower() in ENDLESS:
        return
    found = TIME.fullmatch(text) if text.isascii() and len(text) < 20 else None
    if found is None:
        problem = f"'{text}' is not a time of Slurm's"
        raise PlanError("time", problem, "Write minutes (90), 1:30:00, or days and hours (2-12).")
    # One number is minutes and two are minutes:seconds, but after days they are hours:minutes.
    units = (86400, 3600, 60, 1) if found[1] or found[4] else (0, 60, 1, 0)
    seconds = sum(int(part or 0) * unit for part, unit in zip(found.groups(), units))
    if seconds <= notice_seconds:
        problem = f"'{text}' is {seconds} s to Slurm, and a run hears {notice_seconds} s before"
        raise PlanError("time", problem, "Write hours as 1:00:00, minutes as 60.")


def options(request: Request, choice: SlurmChoice) -> list[str]:
    """The #SBATCH options, quoted where sbatch would read several words."""
    machines = f"{request.least}-{request.most}" if request.least < request.most else request.most
    wanted = request.resources
    said = [
        f"--job-name={request.name}",
        f"--nodes={machines}",
        "--ntasks-per-node=1",
        f"--cpus-per-task={request.cpus}",
        f"--gpus-per-node={wanted.gpus}" * bool(wanted.gpus),
        f"--mem={wanted.memory_bytes // MIB}M" * bool(wanted.memory_bytes),
        f"--time={choice.time}" * bool(choice.time),
        f"--partition={choice.partition}" * bool(choice.partition),
        f"--account={choice.account}" * bool(choice.account),
        f"--array=0-{len(choice.points) - 1}" * bool(choice.points),
        "--no-kill" * (request.least < request.most),
        "--requeue",
        "--open-mode=append",
        f"--signal=USR1@{request.notice_seconds}",
        f"--chdir={request.directory}",
        f"--output={output(request, choice)}",
    ]
    for option in said:
        if "\\" in option or not option.isprintable():  # it reads both as something else
            name, _, value = option.removeprefix("--").partition("=")
            problem = f"{value!r} holds a letter that sbatch does not take"
            raise PlanError(name, problem, "Leave backslashes and line breaks out.")
    return [*(shlex.quote(option) for option in said if option), *further(choice)]


def further(choice: SlurmChoice) -> list[str]:
    """The user's own options: each a line of the script, its words as a shell reads them."""
    return [shlex.join(read_words("sbatch", option)) for option in choice.sbatch]


def output(request: Request, choice: SlurmChoice) -> str:
    """The job's output file, with sbatch's placeholders for the job number."""
    folder = str(request.folder).replace("%", "%%")
    return f"{folder}/slurm-{'%A_%a' if choice.points else '%j'}.out"


def cases(request: Request, choice: SlurmChoice) -> list[str]:
    """Each point of a sweep, with a folder of its own."""
    return [
        f"  {index}) point=({shlex.join([*point, '--run.folder', f'{request.folder}/{index}'])}) ;;"
        for index, point in enumerate(choice.points)
    ]


def srun(request: Request) -> list[str]:
    """srun's words: one task a node; the end of one ends no other, which may be saving."""
    words = ["srun", "--ntasks-per-node=1", f"--cpus-per-task={request.cpus}"]
    words += ["--no-kill"] * (request.least < request.most)
    return [*words, "--kill-on-bad-exit=0", "--wait=0"]


@dataclass(frozen=True, slots=True)
class Allocation:
    """The allocation that this process runs in."""

    job: str
    nodes: int
    nodelist: str

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> Allocation | None:
        job, nodes = environ.get("SLURM_JOB_ID", ""), environ.get("SLURM_JOB_NUM_NODES", "1")
        nodelist = environ.get("SLURM_JOB_NODELIST", "")
        if not (job.isdigit() and nodes.isdigit() and nodelist):
            return None
        return cls(job, int(nodes), nodelist)


def within(request: Request, choice: SlurmChoice, allocation: Allocation) -> list[str]:
    """The command that starts the run inside an allocation; options it cannot meet are refused."""
    asked_for = {
        "partition": choice.partition,
        "account": choice.account,
        "time": choice.time,
        "sbatch": choice.sbatch,
        "sweep": choice.points,
    }
    for name, value in asked_for.items():
        if value:
            raise PlanError(
                name,
                f"is settled by job {allocation.job}, in which this runs",
                f"Leave --{name} out, or start outside of it.",
            )
    if allocation.nodes < request.least:
        raise WorldError(
            "nodes",
            f"{request.least} asked for and job {allocation.job} has {allocation.nodes}",
            f"Use --nodes {allocation.nodes}, or a larger allocation.",
        )
    machines = min(allocation.nodes, request.most)
    meeting: Sequence[str] = ()
    if request.most > 1:
        first, count = PORTS
        port = first + int(allocation.job) % count
        fewest = "" if request.least == request.most else f"{request.least}:"
        meeting = request.meeting(f"{fewest}{machines}", f"{first_node(allocation)}:{port}")
    words = [*srun(request), f"--nodes={machines}", f"--chdir={request.directory}"]
    return [*words, request.python, *request.words, *meeting]


def first_node(allocation: Allocation) -> str:
    """The address of the allocation's first node."""
    names = ask(["scontrol", "show", "hostnames", allocation.nodelist])
    if names.returncode or not names.stdout.split():
        raise WorldError(
            "slurm",
            f"scontrol does not know the nodes {allocation.nodelist} ({reason(names)})",
            "See that this shell is inside a job that still runs.",
        )
    first = names.stdout.split()[0]
    answer = ask(["scontrol", "--oneliner", "show", "node", first]).stdout.split()
    addresses = [word.partition("=")[2] for word in answer if word.startswith("NodeAddr=")]
    return addresses[0] if addresses else first
