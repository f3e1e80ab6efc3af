"""Ray on this machine, and one of its workers killed while a run trains."""

from __future__ import annotations

import importlib.util
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

import psutil

from .same import Launched, Place

START_SECONDS = 180
BOTH = """
import ray, time
ray.init(log_to_driver=False)
while len([node for node in ray.nodes() if node["Alive"]]) < 2:
    time.sleep(0.2)
"""
# A machine that is gone is noticed in seconds, and so are workers that cannot be placed on it.
SOON = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "30",
}
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
    with place.held():
        victim = workers(job)[1]
        os.kill(victim.pid, signal.SIGKILL)
    job.wait()
    return job


class RayCluster:
    """Context with a Ray cluster of two machines, a processor each, of which one can be lost."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="ray-"))  # short: sockets lie deep in it
        with closing(socket.create_server(("127.0.0.1", 0))) as free:
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        # A token of its own: where machines must show one, everybody who talks to it has this.
        self.token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        self.environment = {"RAY_ADDRESS": self.address, **self.token, **SOON}
        self.nodes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> RayCluster:
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def start(self) -> None:
        head = ("--head", "--port", self.address.rpartition(":")[2], "--temp-dir", str(self.folder))
        self.add(*head, "--include-dashboard=false")
        host, _, port = self.address.partition(":")
        listens = f"import socket; socket.create_connection(('{host}', {port}))"
        self.wait([sys.executable, "-c", listens])
        self.add("--address", self.address)
        self.wait([sys.executable, "-c", BOTH])

    def add(self, *words: str) -> None:
        common = ("--num-cpus=1", "--node-ip-address=127.0.0.1", "--disable-usage-stats", "--block")
        with (self.folder / "said").open("ab") as said:
            self.nodes.append(
                subprocess.Popen(
                    [sys.executable, "-m", "ray.scripts.scripts", "start", *words, *common],
                    stdout=said,
                    stderr=said,
                    env={**os.environ, **self.token, **SOON},
                    start_new_session=True,
                )
            )

    def wait(self, command: Sequence[str]) -> None:
        """Until a command succeeds."""
        deadline = time.monotonic() + START_SECONDS
        ask = partial(subprocess.run, capture_output=True, text=True)
        while (answer := ask(command, env={**os.environ, **self.environment})).returncode:
            assert time.monotonic() < deadline, answer.stderr + (self.folder / "said").read_text()
            time.sleep(0.2)

    def lose(self, number: int) -> None:
        """Kill a machine with all that runs on it, but for the ranks, which have to see to that."""
        for process in psutil.Process(self.nodes[number].pid).children(recursive=True):
            if process.name() in ("raylet", "gcs_server"):
                process.kill()

    def __exit__(self, *exit: object) -> None:
        for node in self.nodes:
            for process in psutil.Process(node.pid).children(recursive=True):
                process.kill()
            with suppress(ProcessLookupError):
                os.killpg(node.pid, signal.SIGKILL)  # and what a lost machine left behind
            node.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
