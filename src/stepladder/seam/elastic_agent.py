"""torchrun's agent, with names of our own for what it calls and keeps."""

from __future__ import annotations

import signal
from typing import Any

from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent

from .lookup import find

AGENT = "torch.distributed.elastic.agent.server.local_elastic_agent.LocalElasticAgent"
CALLED = ("_rendezvous", "_monitor_workers", "_restart_workers", "_shutdown")


class ElasticAgent(LocalElasticAgent):
    """Calls `meet`, `monitor` and `restart` at the moments where torch's agent calls its own."""

    def __init__(self, spec: Any, logs: Any) -> None:
        for name in CALLED:
            find(f"{AGENT}.{name}")
        super().__init__(spec, logs)

    def meet(self, worker_group: WorkerGroup) -> None:
        """Meet the other machines."""
        super()._rendezvous(worker_group)

    def monitor(self, worker_group: WorkerGroup) -> RunResult:
        """See how this machine's ranks are."""
        return super()._monitor_workers(worker_group)

    def restart(self, worker_group: WorkerGroup) -> None:
        """End this machine's ranks and start them again."""
        super()._restart_workers(worker_group)

    def stop(self, sign: signal.Signals, grace_seconds: int) -> None:
        """End this machine's ranks, by a signal that they may answer in time."""
        self._shutdown(sign, grace_seconds)

    @property
    def processes(self) -> Any:
        """torch's handle on this machine's ranks; None before they are started."""
        return self._pcontext

    @property
    def restarts_left(self) -> int:
        return self._remaining_restarts

    @restarts_left.setter
    def restarts_left(self, number: int) -> None:
        self._remaining_restarts = number

    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        self.meet(worker_group)

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        return self.monitor(worker_group)

    def _restart_workers(self, worker_group: WorkerGroup) -> None:
        self.restart(worker_group)
