"""N ranks on this machine, started and watched by torchrun's own agent.

The agent starts them, hosts the store where they meet, and ends all when one fails. What is added
here is what a person sees: one readable log, the first failure in a line, an exit code that means
something, and no process left behind.

A signal is passed on to every rank, so that the run saves and stops; a second one ends them.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from uuid import uuid4

import psutil
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.multiprocessing.tail_log import TailLog
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from stepladder.errors import RecordError

from .failure import Ending, first_failure
from .logs import RankLogs, Screen, labels

PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LOOPBACK = ("lo", "lo0")


def launch_local(words: Sequence[str], *, ranks: int, folder: Path) -> int:
    """Run `python WORDS` on so many ranks; the exit code, after saying what went wrong if it did.

    Args:
        folder: the run's; each rank's words are kept in `ranks` in it.
    """
    logs = RankLogs(folder / "ranks", surroundings(ranks, os.environ))
    try:
        logs.clear(ranks)
    except OSError as refused:
        raise RecordError(
            "run folder",
            f"{logs.folder} cannot be written ({refused.strerror})",
            "Name another folder, or give this user the right to write there.",
        ) from refused
    with ExitStack() as stack:
        signals = stack.enter_context(Signals())
        stack.enter_context(quiet_agent())
        stack.enter_context(live_log(logs, ranks))
        ending = run_agent(words, logs, ranks)
    for line in ending.lines if ending.told or not signals.asked else ():
        print(line, file=sys.stderr)  # noqa: T201
    return 128 + signals.asked if signals.asked else ending.code


def run_agent(words: Sequence[str], logs: RankLogs, ranks: int) -> Ending:
    """Start the ranks, wait for them all, and tell how it ended."""
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=ranks,
        run_id=uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",  # any free port
        local_addr="localhost",  # this machine's own name need not resolve
        max_restarts=0,
        logs_specs=logs,
        signals_to_handle="SIGQUIT",  # the others are ours
    )
    try:
        elastic_launch(config, sys.executable)(*words)
    except ChildFailedError as failed:
        for failure in failed.failures.values():  # what a rank itself had started
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(failure.pid, signal.SIGKILL)
        return first_failure(failed.failures, logs)
    return Ending()


def surroundings(ranks: int, environ: Mapping[str, str]) -> dict[str, str]:
    """What ranks of one machine need in their environment, where nobody has said otherwise."""
    cores = psutil.cpu_count(logical=False) or os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = min(cores, len(os.sched_getaffinity(0)))
    wanted = {"OMP_NUM_THREADS": str(max(cores // ranks, 1))}
    loopback = [name for _, name in socket.if_nameindex() if name in LOOPBACK]
    if loopback:
        wanted["GLOO_SOCKET_IFNAME"] = loopback[0]
    return {name: value for name, value in wanted.items() if name not in environ}


@dataclass
class Signals:
    """Context that passes signals on to the ranks; the second one ends them."""

    asked: int = 0
    _before: dict[int, object] = field(default_factory=dict)
    _strangers: set[int] = field(default_factory=set)  # children that are no ranks

    def __enter__(self) -> Signals:
        self._strangers = {child.pid for child in psutil.Process().children()}
        self._before = {number: signal.signal(number, self._pass_on) for number in PASSED_ON}
        return self

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        again, self.asked = bool(self.asked), self.asked or number
        ranks = {child.pid for child in psutil.Process().children()} - self._strangers
        if not ranks:
            raise SystemExit(128 + number)  # nothing was started yet
        for pid in ranks:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL if again else number)  # each leads a session

    def __exit__(self, *exit: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]


@contextmanager
def quiet_agent() -> Iterator[None]:
    """Context in which torch's agent keeps its own wall of text to itself."""
    logger = logging.getLogger("torch.distributed.elastic")
    before, logger.disabled = logger.level, False
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


@contextmanager
def live_log(logs: RankLogs, ranks: int) -> Iterator[None]:
    """Context in which what the ranks write appears on the terminal."""
    out = Screen(sys.stdout, complaints=False)
    errors = Screen(sys.stderr, complaints=True)
    tails = [
        TailLog("out", logs.files(ranks, "out"), out, labels(ranks)),  # type: ignore[arg-type]
        TailLog("err", logs.files(ranks, "err"), errors, labels(ranks)),  # type: ignore[arg-type]
    ]
    for tail in tails:
        tail.start()
    try:
        yield
    finally:
        for tail in tails:
            tail.stop()
