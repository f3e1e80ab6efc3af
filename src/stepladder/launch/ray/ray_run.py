"""Follows a Ray job: runs its script, prints the ranks' output, ends them on a signal.

The script is a process of its own, in a session of its own: Ray takes Ctrl-C for itself and would
kill the workers, and what it has to say is a log and not what a reader of a run looks for.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import TextIO

from stepladder.errors import WorldError
from stepladder.launch.cancel_job import Asked
from stepladder.launch.follow_files import FollowedFiles
from stepladder.launch.local.rank_logs import RankLogs
from stepladder.launch.run_request import Request
from stepladder.launch.slurm.slurm_job import make_folder

from .ray_script import STOP, ray_script

POLL_SECONDS = 0.3
SILENT_SECONDS = 30  # without a rank, before it is said that Ray looks for machines
ANSWER_SECONDS = 10  # for the cluster, before anything starts
FILE = "ray.log"  # Ray's own words


def check_ray(python: str, address: str) -> None:
    """What must be there before a job is handed in; Ray itself would try for minutes."""
    if find_spec("ray") is None:
        raise WorldError(
            "ray",
            "needs the package 'ray', which is not installed",
            "Install it: pip install 'stepladder[ray]'",
        )
    if shutil.which(python) is None:
        raise WorldError("python", f"there is no {python} here", "Name another with --python.")
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not host or not port.isdigit():  # a word of Ray's own, such as auto
        return
    try:
        socket.create_connection((host, int(port)), ANSWER_SECONDS).close()
    except OSError as refused:
        raise WorldError(
            "ray",
            f"nobody answers at {address}, as RAY_ADDRESS says ({refused.strerror or refused})",
            "Start one there, 'ray start --head', or unset it: then one is started here.",
        ) from refused


def run_ray(request: Request, tell: Callable[[str], None], stream: TextIO) -> int:
    """Run the job and show its ranks; its exit code."""
    check_ray(request.python, os.environ.get("RAY_ADDRESS", ""))
    make_folder(request)
    logs = RankLogs(request.folder / "ranks", {})
    logs.clear()
    stop = logs.folder / STOP
    stop.unlink(missing_ok=True)
    file = request.folder / "ray_job.py"
    file.write_text(ray_script(request))
    logs.ranks = list(range(request.most * request.ranks))
    logs.starts = 1
    with ExitStack() as stack:
        asked = stack.enter_context(Asked())
        for kind, where in (("out", stream), ("err", sys.stderr)):
            shown = [logs.path(rank, kind) for rank in logs.ranks]
            stack.enter_context(FollowedFiles(shown, where, logs.labels(), stderr=kind == "err"))
        process = subprocess.Popen(
            [request.python, str(file)],
            cwd=request.directory,
            env={**os.environ, "RAY_TRAIN_V2_ENABLED": "1"},  # elastic workers are of its second
            stdout=stack.enter_context((request.folder / FILE).open("ab")),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        follow(process, request, asked, logs.folder, tell)
    if process.returncode and not asked and not started(logs.folder):
        tell(f"ray: no rank was started; {request.folder / FILE} says why")
    return asked.code if asked else process.returncode


def follow(
    process: subprocess.Popen[bytes],
    request: Request,
    asked: Asked,
    logs: Path,
    tell: Callable[[str], None],
) -> None:
    """Wait for the script; when asked, have the ranks save, and end it where there are none."""
    begun, silent = time.monotonic(), True
    while process.poll() is None:
        asked.wait(POLL_SECONDS)
        if asked and not (logs / STOP).exists():
            (logs / STOP).touch()
            if not started(logs):
                process.kill()  # while it looks for its cluster or machines it hears nothing else
        if silent and time.monotonic() - begun > SILENT_SECONDS and not started(logs):
            silent = False
            wanted = f"{request.least * request.ranks} workers of {request.cpus / request.ranks:g}"
            tell(f"ray: looking for {wanted} CPUs each; {request.folder / FILE} says how it goes")


def started(logs: Path) -> bool:
    """Whether there has been a rank."""
    return any(logs.glob("rank-*.out"))
