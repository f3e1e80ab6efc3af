"""This machine's ranks, started and watched by torchrun's own agent.

The agent starts them, has them meet those of other machines where there are any, ends all when one
fails, and starts them again. What is added here is what a person sees: one readable log, the
first failure in a line, an exit code that means something, and no process left behind.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import psutil
import torch.distributed as dist
from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousError,
    RendezvousTimeoutError,
)
from torch.distributed.launcher.api import LaunchConfig

from stepladder.errors import LostRank, RecordError

from .first_failure import FAILED, Ending
from .launcher_signals import Signals
from .rank_logs import LiveLog, RankLogs
from .rendezvous import JOIN_SECONDS, Nodes, own_stores, rendezvous, route_to, unreachable
from .torchrun_agent import Agent, Policy

LOOPBACK = ("lo", "lo0")
RETRY_SECONDS = 2


@dataclass(frozen=True, slots=True)
class Job:
    """What is started, and how often again."""

    words: Sequence[str]  # after `python`
    ranks: int  # on this machine
    policy: Policy
    nodes: Nodes
    wait_seconds: int  # for other machines to come, or to come back
    address: str  # by which they reach this one


def launch_local(
    words: Sequence[str],
    *,
    ranks: int,
    folder: Path,
    restarts: int = 0,
    nodes: Nodes | None = None,
    wait_seconds: int = 600,
    grace_seconds: int = 30,
) -> int:
    """Run `python WORDS` on so many ranks; the exit code, after saying what went wrong if it did.

    Args:
        folder: the run's; each rank's words are kept in `ranks` in it.
        nodes: the machines that meet, each of which starts so many ranks; None: this one alone.
    """
    met = nodes or Nodes(run_id=uuid4().hex)
    address, interface = route_to(met) if met.host else ("localhost", "")
    logs = RankLogs(folder / "ranks", rank_environment(ranks, os.environ, interface))
    prepare(logs, alone=not met.host)
    policy = Policy(folder, restarts, met.elastic, grace_seconds, wait_seconds)
    job = Job(words, ranks, policy, met, wait_seconds, address)
    with ExitStack() as stack:
        signals = stack.enter_context(Signals())
        for context in (quiet_agent(), own_stores(), own_signals(), LiveLog(logs)):
            stack.enter_context(context)
        ending = keep_running(job, logs, signals)
    for line in ending.lines if ending.reported or not signals.received else ():
        print(line, file=sys.stderr)  # noqa: T201
    return signals.code if signals.received else ending.code


def prepare(logs: RankLogs, *, alone: bool) -> None:
    """Make the folder of the ranks' words; machines that share it leave each other's alone."""
    try:
        if alone:
            logs.clear()
        logs.folder.mkdir(parents=True, exist_ok=True)
    except OSError as refused:
        raise RecordError(
            "run folder",
            f"{logs.folder} cannot be written ({refused.strerror})",
            "Name another folder, or give this user the right to write there.",
        ) from refused


def keep_running(job: Job, logs: RankLogs, signals: Signals) -> Ending:
    """Run the agent; where it loses the place to meet, come back to it as long as may be."""
    lost = 0.0
    while True:
        before = logs.starts
        try:
            return run_agent(job, logs, signals)
        except RendezvousClosedError:
            if signals.received:
                return Ending(signals.code)
            return Ending(FAILED, ("The run was ended by another machine; its log says why.",))
        except RendezvousTimeoutError as waited:
            raise LostRank(
                "nodes",
                f"fewer than {job.nodes.least} came to {job.nodes.host}:{job.nodes.port} within "
                f"{max(job.wait_seconds, JOIN_SECONDS)} s",
                "Start the command on the others, or raise run.timeout_seconds.",
            ) from waited
        except (RendezvousError, dist.DistError) as cut:
            now = time.monotonic()
            if signals.received:  # the others left first
                return Ending(signals.code)
            if not job.nodes.host:
                raise
            if not lost or logs.starts > before:  # it was there in between
                lost = now
                where = f"{job.nodes.host}:{job.nodes.port}"
                print(f"{where} does not answer; trying again.", file=sys.stderr)  # noqa: T201
            if now - lost > job.wait_seconds:
                raise unreachable(job.nodes, f"tried for {job.wait_seconds} s") from cut
            time.sleep(RETRY_SECONDS)


def run_agent(job: Job, logs: RankLogs, signals: Signals) -> Ending:
    """Start the ranks, wait for them all, and tell how it ended."""
    handler = rendezvous(job.nodes, job.address, job.wait_seconds)
    config = LaunchConfig(1, 1, job.ranks, logs_specs=logs)  # for what torch sets by the machine
    spec = WorkerSpec(
        role="default_role",
        local_world_size=job.ranks,
        entrypoint=sys.executable,
        args=tuple(job.words),
        rdzv_handler=handler,
        max_restarts=job.policy.restarts,
        monitor_interval=0.1,
        local_addr=job.address,
        numa_options=config.numa_options,
    )
    agent = Agent(spec, logs, job.policy, signals)
    result = agent.run()  # where it raises, the place to meet is out of reach, or closed already
    if not signals.received:  # closed, nobody may come back to it: not so where this machine leaves
        handler.shutdown()
    return agent.ending if result is None or result.is_failed() else Ending()


def rank_environment(ranks: int, environ: Mapping[str, str], interface: str = "") -> dict[str, str]:
    """What ranks of one machine need in their environment, where nobody has said otherwise."""
    cores = psutil.cpu_count(logical=False) or os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = min(cores, len(os.sched_getaffinity(0)))
    wanted = {"OMP_NUM_THREADS": str(max(cores // ranks, 1))}
    loopback = [name for _, name in socket.if_nameindex() if name in LOOPBACK]
    if interface:
        wanted |= {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface}
    elif loopback:
        wanted["GLOO_SOCKET_IFNAME"] = loopback[0]
    return {name: value for name, value in wanted.items() if name not in environ}


@contextmanager
def own_signals() -> Iterator[None]:
    """Context in which torch's agent leaves all signals but one to us."""
    name = "TORCHELASTIC_SIGNALS_TO_HANDLE"
    before = os.environ.get(name)
    os.environ[name] = "SIGQUIT"
    try:
        yield
    finally:
        os.environ.pop(name)
        if before is not None:
            os.environ[name] = before


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
