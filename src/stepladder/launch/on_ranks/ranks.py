"""Local ranks: call a function on each of several processes and get the results by rank.

The worker processes are kept between calls, because importing torch takes seconds. Each call is a
world of its own: the launcher's variables are set as torchrun sets them, so `sl.climb`,
`join_world` and a bare `init_process_group()` find the other ranks, and the process group that the
function left open is destroyed behind it. A rank that died, hung or cannot leave its group is
replaced before the next call.

The ranks meet at a store in this process, as under torchrun's agent: its port is taken when it is
made, so no other program can take it in between. Training runs are started by torchrun's agent
instead (`stepladder.launch.launch_local`).
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist

from stepladder.errors import WorldError
from stepladder.launch.local.start_local import rank_environment

from .failure import Failure, first_failure
from .in_rank import call_with_torch, import_torch
from .rank_output import Listener
from .worker import EXIT, LEAVE
from .worker_process import Call, Worker, fork, message, packed, spawn

Result = TypeVar("Result")

ADDRESS = "127.0.0.1"
TIMEOUT_SECONDS = 600.0
START_SECONDS = 180.0  # to import torch, on a busy machine
LEAVE_SECONDS = 60.0  # to destroy a process group
LOOK_SECONDS = 1.0  # between looks whether a rank that says nothing has ended


class Ranks:
    """Context with worker processes on which a function can be called, one rank each.

    >>> with Ranks(2) as ranks:
    ...     ranks.call(max, 3, 4)
    [4, 4]

    A function that can be imported is sent by name, one of a notebook or a script by value.

    Args:
        ranks: the most that one call may use; workers start when a call first needs them.
        start: "fork" copies this process for every call, so that nothing need be sent.
        import_torch: workers import torch when they start and share this process's threads.
        threads: of each rank; None: its share of this process's.
        show_output: what ranks write appears here line by line, with their label.
        between_calls: called in a worker before its first call and after every call.
        grace_seconds: for the other ranks to answer once one has failed.
        left_alone_seconds: for the other ranks to answer once one is done.
    """

    def __init__(
        self,
        ranks: int,
        *,
        start: Literal["spawn", "fork"] = "spawn",
        import_torch: bool = True,
        threads: int | None = None,
        show_output: bool = False,
        between_calls: Callable[[], None] | None = None,
        grace_seconds: float = 3.0,
        left_alone_seconds: float = math.inf,
    ) -> None:
        if not isinstance(ranks, int) or ranks < 1:
            raise WorldError("ranks", f"{ranks} is not a number of processes", "Use 1 or more.")
        self.ranks, self.forks = ranks, start == "fork"
        self.import_torch, self.threads = import_torch, threads
        self.show_output, self.between_calls = show_output, between_calls
        self.grace_seconds, self.left_alone_seconds = grace_seconds, left_alone_seconds
        self.open = False
        self.workers: list[Worker] = []  # as many as a call has needed so far

    def __enter__(self) -> Ranks:
        self.open = True
        return self

    def __exit__(self, *exit: object) -> None:
        self.open = False
        self.restart()

    def call(
        self,
        function: Callable[..., Result],
        *args: Any,
        ranks: int | None = None,
        init_method: str | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> list[Result]:
        """Call `function(*args)` on every rank; the results by rank, or the first failure.

        An error keeps its type and gains a note with its rank and traceback. A rank that died is a
        `LostRank`, and so is one that hung, with its stacks as a note.

        Args:
            ranks: on so many only, from rank 0.
            init_method: make a gloo process group first (torch's name: "env://", "file://…").
        """
        found = self.attempt(function, args, ranks, init_method, timeout_seconds)
        if isinstance(found, Failure):
            raise found.exception()
        return found

    def attempt(
        self,
        function: Callable[..., Result],
        args: tuple[Any, ...] = (),
        ranks: int | None = None,
        init_method: str | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> list[Result] | Failure:
        """As `call`, but a failure is returned."""
        count = self._count(ranks)
        call: Call = (function, args)
        if self.import_torch:
            threads = self.threads or max(1, torch.get_num_threads() // count)
            call = (call_with_torch, (threads, init_method, function, args))
        if self.forks:
            environments = [environment(rank, count, 0) for rank in range(count)]
            self.workers += [fork(call, environ) for environ in environments]
            return self._complete(self.workers[:count], [], timeout_seconds)
        sent = packed(call)
        store = dist.TCPStore(ADDRESS, 0, is_master=True, wait_for_workers=False)
        environments = [environment(rank, count, store.port) for rank in range(count)]
        messages = [message(sent, environ) for environ in environments]
        return self._complete(self._hire(count), messages, timeout_seconds)

    def restart(self) -> None:
        """Kill all workers; the next call starts new ones."""
        self._dismiss(list(self.workers))

    def finish(self) -> None:
        """Let idle workers exit in their own time: what they save in the background is whole."""
        for worker in self.workers:
            worker.send(EXIT)
        with Listener(self.workers) as listener:
            while any(worker.process.poll() is None for worker in self.workers):
                listener.listen(0.05)
            listener.drain()
        self.restart()

    def _count(self, ranks: int | None) -> int:
        if not self.open:
            problem = "they are used outside their context"
            raise WorldError("ranks", problem, f"Write 'with Ranks({self.ranks}) as ranks:' first.")
        count = self.ranks if ranks is None else ranks
        if not 1 <= count <= self.ranks:
            problem = f"{count} asked for, of {self.ranks}"
            raise WorldError("ranks", problem, f"Use 1 to {self.ranks}, or make more.")
        return count

    def _hire(self, count: int) -> list[Worker]:
        """So many living workers; those that died since their last call are replaced."""
        self._dismiss([worker for worker in self.workers if worker.process.poll() is not None])
        reset = self.between_calls or (import_torch if self.import_torch else None)
        while len(self.workers) < count:
            self.workers.append(spawn(reset, pipe_output=self.show_output))
        return self.workers[:count]

    def _dismiss(self, workers: Sequence[Worker]) -> None:
        for worker in workers:
            self.workers.remove(worker)
            worker.kill()

    def _complete(
        self, workers: list[Worker], messages: list[bytes], timeout_seconds: float
    ) -> list[Any] | Failure:
        """Send each its message, if any, and wait until the call is over on all of them."""
        try:
            with Listener(workers) as listener:
                late = self._await_answers(workers, messages, listener, timeout_seconds)
                listener.drain()
                failure = first_failure(workers, late)
                results = [] if failure else [worker.load("value") for worker in workers]
                self._dismiss([worker for worker in workers if worker.lost or worker.silent])
                stuck = self._leave(workers, listener)
        except BaseException:  # an interrupt: nobody will take these answers
            self._dismiss([worker for worker in workers if worker in self.workers])
            raise
        if self.forks:
            self.restart()
        return failure or stuck or results

    def _await_answers(
        self, workers: list[Worker], messages: list[bytes], listener: Listener, seconds: float
    ) -> str:
        """Wait for the answers as long as may be; what a rank did that has not answered."""
        deadline = time.monotonic() + START_SECONDS
        while not all(worker.ready or worker.lost for worker in workers):
            if not wait(workers, listener, deadline):
                return f"did not start within {START_SECONDS:g} s"
        for worker, call in zip(workers, messages):
            worker.forget()
            worker.send(call)
        deadline = time.monotonic() + seconds
        while any(worker.silent for worker in workers):
            answered = [worker.answered_at for worker in workers if not worker.silent]
            failed = [worker.answered_at for worker in workers if worker.failed]
            alone = max(answered, default=math.inf) + self.left_alone_seconds
            grace = min(failed, default=math.inf) + self.grace_seconds
            if not wait(workers, listener, min(deadline, alone, grace)):
                if alone < deadline:
                    done = [str(rank) for rank, one in enumerate(workers) if not one.silent]
                    return f"still waits for something when rank {', '.join(done)} is done"
                break
        return f"did not finish within {seconds:g} s"

    def _leave(self, workers: list[Worker], listener: Listener) -> Failure | None:
        """Have the ranks that answered leave their process group; one that cannot is replaced."""
        if self.forks:
            return None
        answered = {rank: one for rank, one in enumerate(workers) if one.answer and not one.lost}
        for worker in answered.values():
            if not worker.failed:  # one that failed has left by itself
                worker.send(LEAVE)
        deadline = time.monotonic() + LEAVE_SECONDS
        while not all(worker.left for worker in answered.values()):
            if not wait(list(answered.values()), listener, deadline):
                break
        stuck = {rank: one for rank, one in answered.items() if one.lost or not one.left}
        self._dismiss(list(stuck.values()))
        for rank in stuck:
            return Failure(rank, len(workers), "could not leave its process group", lost=True)
        return None


def wait(workers: Sequence[Worker], listener: Listener, deadline: float) -> bool:
    """Take what comes until the deadline, or a moment; False if the deadline is over."""
    left = deadline - time.monotonic()
    if left <= 0:
        return False
    listener.listen(min(left, LOOK_SECONDS))
    for worker in workers:
        if not worker.lost:
            worker.check_alive()
    return True


def environment(rank: int, ranks: int, port: int) -> dict[str, str]:
    """What torchrun sets, and what ranks of one machine need."""
    place = {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": ranks}
    return {
        **rank_environment(ranks, os.environ),
        **{name: str(number) for name, number in place.items()},
        "MASTER_ADDR": ADDRESS,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # rank 0 is to find the store, not to make it
        "TORCHELASTIC_RESTART_COUNT": "0",
    }
