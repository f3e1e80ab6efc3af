"""Ray on this machine, and one of its workers killed while a run trains."""

from __future__ import annotations

import importlib.util
import os
import signal

import psutil

from .same import Launched, Place

INSTALL = "pip install 'stepladder[ray]'"


def missing() -> str:
    """Why nothing can run on Ray here; empty: it can."""
    return "" if importlib.util.find_spec("ray") else f"no ray here: {INSTALL}"


def workers(job: Launched) -> dict[int, psutil.Process]:
    """Ray's workers, by the rank that each has started."""
    found = {}
    for process in psutil.process_iter(["cmdline", "environ"]):
        words, variables = process.info["cmdline"] or (), process.info["environ"] or {}
        if "stepladder.cli.rank" in words and str(job.run.folder) in words:
            found[int(variables["RANK"])] = process.parent()
    return found


def lose_worker(place: Place, name: str) -> Launched:
    """A run one of whose workers is killed, to its end."""
    place.pause(0.15)
    job = place.launch("ray", name, "--ranks-per-node", "2", "--json")
    job.trains(7)
    place.pause(0)
    victim = workers(job)[1]
    os.kill(victim.pid, signal.SIGKILL)
    job.wait()
    return job
