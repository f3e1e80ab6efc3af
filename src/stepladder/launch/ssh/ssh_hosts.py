"""A run on machines that ssh reaches: one command each, which ends with its connection.

Before anything starts every machine is asked, all at once, whether it answers, has the folder and
the Python that are named, and whether the port where they meet is free. Then each runs its own
launcher. The connection is a leash: when it is cut, because the run was cancelled here, or this
machine or the network died, the launcher at its end is sent SIGTERM; its ranks save, and end.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TextIO

from stepladder.errors import PlanError, raise_all
from stepladder.launch.cancel_job import Asked
from stepladder.launch.external_programs import ask, find_program, reason
from stepladder.launch.follow_files import FollowedFiles
from stepladder.launch.local.first_failure import FAILED
from stepladder.launch.local.rendezvous import PORT, parse_nodes
from stepladder.launch.run_request import Request, read_words
from stepladder.launch.slurm.slurm_job import make_folder

POLL_SECONDS = 0.3
NO_FOLDER, NO_PYTHON, NO_PACKAGE, BUSY, BROKEN = 80, 81, 82, 83, 255
MACHINE = re.compile(r"[\w.%:\[\]@][\w.%:\[\]@-]*")  # user@name, or an address
OPTIONS = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=15", "-o", "ServerAliveInterval=15")


@dataclass(frozen=True, slots=True)
class Hosts:
    names: tuple[str, ...]  # the first is where they meet
    ssh: tuple[str, ...] = ("ssh",)
    rendezvous: str = ""  # empty: the first, at torchrun's own port

    @property
    def meeting(self) -> str:
        return self.rendezvous or f"{self.names[0].rpartition('@')[2]}:{PORT}"

    @property
    def port(self) -> str:
        return str(parse_nodes("1", self.meeting, "").port)

    def to(self, host: str, line: str) -> list[str]:
        """The words that run a shell's line on a machine."""
        return [*self.ssh, *OPTIONS, host, line]


def parse_hosts(text: str, ssh: str, rendezvous: str) -> Hosts:
    """From `a,b` or `user@a,user@b`."""
    names = tuple(name.strip() for name in text.split(","))
    if not all(MACHINE.fullmatch(name) for name in names):
        raise PlanError("hosts", f"{text!r} is not a list of machines", "Write --hosts a,b,c.")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise PlanError("hosts", f"{twice[0]} is named twice", "Name every machine once.")
    if rendezvous:
        parse_nodes(str(len(names)), rendezvous, "")
    return Hosts(names, tuple(read_words("ssh", ssh)) or ("ssh",), rendezvous)


def leashed(request: Request, hosts: Hosts) -> str:
    """The shell command of each machine: start the launcher, and end it with the connection."""
    where = request.meeting(request.nodes, hosts.meeting)
    command = request.line(*map(shlex.quote, where))
    return (
        f"cd {shlex.quote(str(request.directory))} || exit {NO_FOLDER}; "
        f"exec 3<&0; {{ {command} </dev/null & }}; "
        'run=$!; { cat <&3; kill -TERM "$run"; } >/dev/null 2>&1 & leash=$!; '
        'wait "$run"; code=$?; kill "$leash" 2>/dev/null; exit "$code"'
    )


def question(request: Request, hosts: Hosts, host: str) -> str:
    """What a machine is asked before anything starts; its code is the answer."""
    first = f"import socket; socket.create_server(('', {hosts.port})).close()"
    line = (
        f"cd {shlex.quote(str(request.directory))} || exit {NO_FOLDER}; "
        f"command -v {shlex.quote(request.python)} >/dev/null || exit {NO_PYTHON}; "
        f"{shlex.quote(request.python)} -c 'import stepladder.version' || exit {NO_PACKAGE}"
    )
    if host != hosts.names[0] or request.most == 1:
        return line
    return f"{line}; {shlex.quote(request.python)} -c {shlex.quote(first)} || exit {BUSY}"


def check_hosts(request: Request, hosts: Hosts) -> None:
    """Ask all machines at once; every problem is reported."""

    def one(host: str) -> PlanError | None:
        answer = ask(hosts.to(host, question(request, hosts, host)))
        return trouble(request, hosts, host, answer)

    with ThreadPoolExecutor(len(hosts.names)) as pool:
        raise_all(found for found in pool.map(one, hosts.names) if found)


def trouble(
    request: Request, hosts: Hosts, host: str, answer: subprocess.CompletedProcess[str]
) -> PlanError | None:
    """What a machine's answer means."""
    if answer.returncode == NO_FOLDER:
        problem = f"{host} has no folder {request.directory}"
        return PlanError("hosts", problem, "Start where every machine has the same files.")
    if answer.returncode == NO_PYTHON:
        return PlanError("python", f"{host} has no {request.python}", "Name it with --python.")
    if answer.returncode == NO_PACKAGE:
        problem = f"{request.python} of {host} has no stepladder"
        return PlanError("python", problem, "Install it there, or name another with --python.")
    if answer.returncode == BUSY:
        problem = f"port {hosts.port} of {host} is taken"
        way_out = f"Name another: --rendezvous {hosts.meeting.rpartition(':')[0]}:PORT."
        return PlanError("rendezvous", problem, way_out)
    if answer.returncode:
        problem = f"ssh does not reach '{host}' ({reason(answer)})"
        return PlanError("hosts", problem, f"'ssh {host}' must work without a password.")
    return None


def run_hosts(request: Request, hosts: Hosts, tell: Callable[[str], None], stream: TextIO) -> int:
    """Start the launchers, show what they say, end them all when asked; the run's exit code."""
    find_program(hosts.ssh[0], "ssh", "Install an ssh client.")
    check_hosts(request, hosts)
    make_folder(request)
    logs = request.folder / "hosts"
    logs.mkdir(exist_ok=True)
    line = leashed(request, hosts)
    outs = [logs / f"{host}.out" for host in hosts.names]
    errors = [logs / f"{host}.err" for host in hosts.names]
    with ExitStack() as stack:
        asked = stack.enter_context(Asked())
        stack.enter_context(FollowedFiles(outs, stream))
        stack.enter_context(FollowedFiles(errors, sys.stderr, stderr=True))
        leashes = [
            subprocess.Popen(
                hosts.to(host, line),
                stdin=subprocess.PIPE,
                stdout=stack.enter_context(out.open("wb")),
                stderr=stack.enter_context(error.open("wb")),
                start_new_session=True,  # a terminal's Ctrl-C is ours to pass on
            )
            for host, out, error in zip(hosts.names, outs, errors)
        ]
        watch(leashes, request, asked)
    codes = [leash.wait() for leash in leashes]
    for host, code in zip(hosts.names, codes):
        if code == BROKEN:
            tell(f"{host}: the connection broke")
    return asked.code if asked else verdict(codes)


def watch(leashes: Sequence[subprocess.Popen[bytes]], request: Request, asked: Asked) -> None:
    """Wait for all; let go of all when asked, or when one failed and the others do not notice."""
    failed = 0.0
    while any(leash.poll() is None for leash in leashes):
        bad = any(leash.poll() for leash in leashes)
        failed = failed or (time.monotonic() if bad and request.least == request.most else 0.0)
        late = failed and time.monotonic() - failed > request.notice_seconds
        if asked or late:
            for leash in leashes:
                if leash.stdin and not leash.stdin.closed:
                    leash.stdin.close()
        asked.wait(POLL_SECONDS)


def verdict(codes: Sequence[int]) -> int:
    """One code of several: a mistake before a failure, a failure before a stop."""
    wrong = [FAILED if code == BROKEN else code for code in codes if code]
    return min(wrong, key=lambda code: (code != 2, code != FAILED, code), default=0)
