"""A Ray job followed to its end: its script run here, its ranks shown, all ended when asked.

The script is a process of its own, in a session of its own: Ray takes Ctrl-C for itself and would
kill the workers, and what it has to say is a log and not what a reader of a run looks for.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from importlib.util import find_spec
from typing import TextIO

from stepladder.errors import WorldError

from .asked import Asked
from .logs import RankLogs
from .queue import make_folder
from .ray_job import STOP, ray_script
from .request import Request
from .shown import Shown

POLL_SECONDS = 0.3


def run_ray(request: Request, stream: TextIO) -> int:
    """Run the job and show its ranks; its exit code."""
    if find_spec("ray") is None:
        raise WorldError(
            "ray",
            "needs the package 'ray', which is not installed",
            "Install it: pip install 'stepladder[ray]'",
        )
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
            stack.enter_context(Shown(shown, where, logs.labels(), complaints=kind == "err"))
        process = subprocess.Popen(
            [request.python, str(file)],
            cwd=request.directory,
            env={**os.environ, "RAY_TRAIN_V2_ENABLED": "1"},  # elastic workers are of its second
            stdout=stack.enter_context((request.folder / "ray.log").open("ab")),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        while process.poll() is None:
            asked.wait(POLL_SECONDS)
            if asked and not stop.exists():
                stop.touch()
    return asked.code if asked else process.returncode
