"""Follows a Slurm job: submits it, prints its state when that changes, cancels it on a signal.

What it says is what scontrol says. A job that scontrol has forgotten is asked after in sacct, where
the cluster keeps accounts.
"""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import NoReturn, TextIO

from stepladder.errors import WorldError
from stepladder.launch.cancel_job import Asked
from stepladder.launch.external_programs import ask, find_program, reason
from stepladder.launch.follow_files import FollowedFiles
from stepladder.launch.run_request import Request

from .slurm_script import Allocation, SlurmChoice, script, within

POLL_SECONDS = 2.0
LIVE = (
    "CONFIGURING", "COMPLETING", "PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESIZING",
    "RESV_DEL_HOLD", "RUNNING", "SIGNALING", "STAGE_OUT", "STOPPED", "SUSPENDED",
)  # fmt: skip
# Reasons to wait that only a change of the job or the cluster ends: free machines do not help.
NEVER = (
    "AccountNotAllowed", "BadConstraints", "InvalidAccount", "InvalidQOS", "PartitionConfig",
    "PartitionTimeLimit", "QOSNotAllowed",
)  # fmt: skip
LOOKS = 3  # in a row that show such a reason, before the job is cancelled
SILENT_LOOKS = 15  # after a Ctrl-C, at a server that does not answer
PARTITIONS = "'sinfo --long' lists what partitions have; --dry-run shows the script."
ELSEWHERE = "Run this on a login node of the cluster, or add --dry-run to see the script."


@dataclass(frozen=True, slots=True)
class State:
    """What Slurm says of one job, or of one run of a sweep."""

    name: str  # its number, and its index in a sweep
    state: str
    reason: str
    code: int
    restarts: int

    @property
    def ended(self) -> bool:
        return self.state not in LIVE

    @property
    def hopeless(self) -> bool:
        return self.state == "PENDING" and self.reason in NEVER

    def __str__(self) -> str:
        why = f" ({self.reason})" if self.state == "PENDING" and self.reason != "None" else ""
        again = f", start {self.restarts + 1}" if self.restarts else ""
        return f"job {self.name}: {self.state}{why}{again}"


def submit(request: Request, choice: SlurmChoice) -> str:
    """Submit the job; its number."""
    job = script(request, choice)  # what is wrong with it is wrong on every machine
    find_program("sbatch", "slurm", ELSEWHERE)
    make_folder(request)
    answer = ask(["sbatch", "--parsable"], given=job)
    if answer.returncode:
        raise WorldError(
            "slurm",
            f"sbatch refused the job ({reason(answer)})",
            PARTITIONS,
        )
    return answer.stdout.strip().partition(";")[0]


def make_folder(request: Request) -> None:
    try:
        request.folder.mkdir(parents=True, exist_ok=True)
    except OSError as refused:
        raise WorldError(
            "run folder",
            f"{request.folder} cannot be written ({refused.strerror})",
            "Name a folder that every machine sees.",
        ) from refused


def follow(
    job: str, request: Request, choice: SlurmChoice, tell: Callable[[str], None], stream: TextIO
) -> int:
    """Print the job's output and state changes until it ends; its exit code."""
    reported: dict[str, str] = {}
    with ExitStack() as stack:
        asked = stack.enter_context(Asked())
        if not choice.points:  # a sweep's runs write to files of their own
            stack.enter_context(FollowedFiles([request.folder / f"slurm-{job}.out"], stream))
        cancelled, hopeless, silent = False, 0, 0
        while True:
            states = look(job)
            for state in states:
                if reported.get(state.name) != str(state):
                    reported[state.name] = str(state)
                    tell(str(state))
            if states and all(state.ended for state in states):
                break
            hopeless = hopeless + 1 if any(state.hopeless for state in states) else 0
            if hopeless == LOOKS and not asked:
                take_back(job, next(state for state in states if state.hopeless))
            if asked and not cancelled:
                cancelled = True
                tell(f"cancelling job {job}")
                ask(["scancel", job])
            silent = 0 if states or not cancelled else silent + 1
            if silent == SILENT_LOOKS:
                tell(f"slurm does not answer: 'scancel {job}' when it does again")
                break
            asked.wait(POLL_SECONDS)
        return asked.code if asked else max(state.code for state in states)


def take_back(job: str, state: State) -> NoReturn:
    """Cancel a job that would wait forever, and say so."""
    ask(["scancel", job])
    problem = f"job {state.name} would wait for ever ({state.reason}), and was cancelled"
    raise WorldError("slurm", problem, PARTITIONS)


def look(job: str) -> list[State]:
    """The job's states from scontrol, or from sacct once scontrol has dropped the job."""
    answer = ask(["scontrol", "--oneliner", "show", "job", job])
    if not answer.returncode:
        return [read_state(line) for line in answer.stdout.splitlines() if line.strip()]
    if "Invalid job id" not in answer.stderr:
        return []  # its server is away for a moment
    kept = ask(["sacct", "-j", job, "-X", "-n", "-P", "-o", "JobID,State,ExitCode"])
    rows = [line.split("|") for line in kept.stdout.splitlines() if line.count("|") == 2]
    if kept.returncode or not rows:
        raise WorldError(
            "slurm",
            f"job {job} is forgotten by scontrol, and sacct knows nothing of it",
            "What it said and saved is in the run's folder.",
        )
    return [
        State(name, word, "", exit_code(word, code), 0)
        for name, state, code in rows
        for word in [state.split()[0]]
    ]


def read_state(line: str) -> State:
    """One line of `scontrol --oneliner show job`."""
    words: dict[str, str] = {}
    for name, value in re.findall(r"(\w+)=(\S*)", line):
        words.setdefault(name, value)
    index = words.get("ArrayTaskId", "")
    number = f"{words.get('ArrayJobId', '')}_{index}" if index else words["JobId"]
    state = words["JobState"]
    code = exit_code(state, words.get("ExitCode", "0:0"))
    return State(number, state, words.get("Reason", "None"), code, int(words.get("Restarts", "0")))


def exit_code(state: str, text: str) -> int:
    """The job's own code, or 128 + the signal that ended it; never 0 for a job that failed."""
    own, _, ended_by = text.partition(":")
    if state == "COMPLETED":
        return int(own)
    return int(own) or (128 + int(ended_by) if int(ended_by or 0) else 1)


def run_within(request: Request, choice: SlurmChoice, allocation: Allocation) -> int:
    """Start the run inside an existing allocation; its exit code."""
    find_program("srun", "slurm", ELSEWHERE)
    make_folder(request)
    # In a session of its own: srun answers a terminal's Ctrl-C with a question.
    process = subprocess.Popen(within(request, choice, allocation), start_new_session=True)
    with Asked() as asked:
        while process.poll() is None:
            before = bool(asked)
            asked.wait(POLL_SECONDS / 4)
            if asked and not before:
                process.send_signal(signal.SIGTERM)  # which it passes on, and waits
        return asked.code if asked else process.returncode
