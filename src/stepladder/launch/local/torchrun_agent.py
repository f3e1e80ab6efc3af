"""Torch's elastic agent, with an opinion: what is worth starting again, and how ranks end.

    a rank was killed, hung, or raised    all ranks of this machine end and start again, from the
                                          last good checkpoint, as often as `restarts` allows
    it failed the same way twice without  it would fail a third time: the run ends
    a checkpoint in between
    a user's mistake                      the run ends
    machines wait to be taken in          the ranks save, and all start again with them
    another machine stopped the run       where machines may leave: start again without it

Ranks that lost one of their own cannot save, so they are not asked to: they end at once.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch.distributed as dist
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerState

from stepladder.errors import RecordError
from stepladder.record import Journal
from stepladder.seam.elastic_agent import ElasticAgent

from .first_failure import MISTAKE, STOPPED, Ending, first_failure
from .launcher_signals import Signals
from .rank_logs import RankLogs

LAST_WORDS_SECONDS = 3.0  # for the others' words, once one rank has left its own


@dataclass(frozen=True, slots=True)
class Policy:
    folder: Path  # the run's
    restarts: int
    elastic: bool  # machines may leave
    grace_seconds: int  # for ranks to save when they are asked to stop
    timeout_seconds: int  # for a rank that does not run at all


class Agent(ElasticAgent):
    """Starts this machine's ranks, watches them, and decides what follows when one fails."""

    def __init__(self, spec: Any, logs: RankLogs, policy: Policy, signals: Signals) -> None:
        super().__init__(spec, logs)
        self.logs, self.policy, self.signals = logs, policy, signals
        signals.rank_processes = self._pids
        self.ending = Ending()
        self._meeting: dist.Store | None = None  # where the ranks of this start meet
        self._stopped: dict[int, float] = {}  # processes that do not run, and since when
        self._last: tuple[str, ...] = ()  # what the last failure was, and what was saved then

    def meet(self, worker_group: WorkerGroup) -> None:
        """Meet the other machines; the first keeps the store where this start's ranks will meet.

        It outlives them: a rank that hangs would take with it what the others need to name it. And
        it is new each time: in an older one ranks find what those before them left.
        """
        super().meet(worker_group)
        self._meeting = None
        if worker_group.group_rank == 0:
            address, port = worker_group.master_addr, worker_group.master_port
            assert address is not None and port is not None
            self._meeting = dist.TCPStore(address, port, is_master=True, wait_for_workers=False)

    def monitor(self, worker_group: WorkerGroup) -> RunResult:
        self._end_stopped()
        order = self._end_all() if self._failed() else []
        result = super().monitor(worker_group)
        if result.state is WorkerState.FAILED:
            seen = [worker_group.workers[local].global_rank for local in order]
            kept = result.failures
            ordered = {rank: kept[rank] for rank in [*seen, *kept] if rank in kept}
            self.ending = first_failure(ordered, self.logs)
            self._judge(self.ending)
        return result

    def _end_stopped(self) -> None:
        """End a rank that was stopped and not woken; one alone has nobody else to notice it."""
        for local, handler in self._handlers().items():
            with suppress(psutil.Error):
                if psutil.Process(handler.proc.pid).status() != psutil.STATUS_STOPPED:
                    self._stopped.pop(handler.proc.pid, None)
                    continue
                since = self._stopped.setdefault(handler.proc.pid, time.monotonic())
                if time.monotonic() - since > self.policy.timeout_seconds:
                    rank = self.logs.ranks[local]
                    self.tell(f"[rank {rank}] was stopped for {self.policy.timeout_seconds} s.")
                    handler.proc.kill()

    def _failed(self) -> list[int]:
        """Local ranks that ended badly."""
        handlers = self._handlers()
        return [rank for rank, handler in handlers.items() if handler.proc.poll()]

    def _end_all(self) -> list[int]:
        """End the ranks that are left, after hearing those that have something to say."""
        order = self._failed()
        codes = [self._handlers()[rank].proc.poll() for rank in order]
        patience = LAST_WORDS_SECONDS * any(code > 0 for code in codes)
        if any(code > STOPPED for code in codes):  # all were asked to stop, and save
            patience = self.policy.grace_seconds
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline and self._running():
            time.sleep(0.02)
            order += [rank for rank in self._failed() if rank not in order]
        for pid in self._pids():
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)  # and whatever a rank had started
        return order

    def _pids(self) -> list[int]:
        return list(self.processes.pids().values()) if self.processes else []

    def _running(self) -> bool:
        return any(handler.proc.poll() is None for handler in self._handlers().values())

    def _handlers(self) -> dict[int, Any]:
        return getattr(self.processes, "subprocess_handlers", {})

    def _judge(self, ending: Ending) -> None:
        """Decide whether to start again; torch's own count of what is left is the decision."""
        failure = (*ending.lines[:1], newest(self.policy.folder))
        hopeless = ending.code == MISTAKE or (ending.reported and failure == self._last)
        self._last = failure
        stopped = ending.code > STOPPED
        if self.signals.received or hopeless or (stopped and not self.policy.elastic):
            self.restarts_left = 0
        elif stopped:
            self.restarts_left += 1  # nothing failed
            self.tell("Another machine stopped; starting again with those that are left.")
        elif self.restarts_left:
            nth = self.policy.restarts - self.restarts_left + 1
            for line in ending.lines:
                self.tell(line, show_only=True)
            first = ending.lines[0] if ending.lines else ""
            self.tell(f"Starting again ({nth} of {self.policy.restarts}).", because=first)

    def restart(self, worker_group: WorkerGroup) -> None:
        if worker_group.state is WorkerState.HEALTHY:
            self.tell("More machines have come: saving, and starting again with them.")
            self.stop(signal.SIGTERM, self.policy.grace_seconds)
        super().restart(worker_group)

    def tell(self, line: str, because: str = "", *, show_only: bool = False) -> None:
        """Say it here, and in the run's journal where this machine writes it."""
        print(line, file=sys.stderr, flush=True)  # noqa: T201
        if show_only or self.get_worker_group().group_rank != 0:
            return
        with suppress(RecordError), Journal(self.policy.folder) as journal:
            text = f"{line} {because}".rstrip()
            journal.write("event", step=saved_step(self.policy.folder), text=text)


def newest(folder: Path) -> str:
    """The name of the last checkpoint, if there is one."""
    with suppress(OSError):
        return (folder / "latest").read_text().strip()
    return ""


def saved_step(folder: Path) -> int:
    digits = newest(folder).removeprefix("step-")
    return int(digits) if digits.isdigit() else 0
