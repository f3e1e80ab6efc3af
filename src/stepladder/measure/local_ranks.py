"""Several local ranks for a measurement: call a function on each, get the answers by rank.

A measurement is a function call, not a training run: it wants values back, many times, from
processes that have already paid the seconds torch takes to import. So a team keeps its processes
between calls, and each call is a world of its own: the launcher's variables are set as torchrun
sets them, the function joins with `stepladder.world.join` (or `climb`, which does), and what it
left open is closed behind it. Runs that train are started by torchrun's agent instead.

The ranks meet at a store that this process holds, as they do under torchrun's agent: its port is
taken when it is made, so no other program can take it in between.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
import torch.distributed as dist

from stepladder.errors import StepladderError, WorldError

ADDRESS = "127.0.0.1"
GRACE_SECONDS = 3.0  # for the other ranks to answer once one has failed
TIMEOUT_SECONDS = 600.0
PROCESSES = multiprocessing.get_context("spawn")  # a fork would copy torch's threads' locks


@dataclass(frozen=True, slots=True)
class Job:
    """What one rank is asked to do; the call is pickled apart, so that its loading can fail."""

    call: bytes
    environment: dict[str, str]
    threads: int


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back of a rank: a value, or an error with where and when it was raised."""

    value: Any = None
    error: BaseException | str | None = None  # its text, where it cannot travel
    trace: str = ""
    moment: float = 0.0  # which of several failures came first, by the clock all processes share


class Worker:
    """One process that has imported torch and waits for jobs."""

    def __init__(self) -> None:
        self.connection, theirs = PROCESSES.Pipe()
        # Not a daemon: what it runs may read its data in processes of its own.
        self.process = PROCESSES.Process(target=serve, args=(theirs,))
        self.process.start()
        theirs.close()

    def kill(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()


class Team:
    """Context in which processes stand by as ranks.

    `with Team(4) as team: team.run(function, *args)`. The function must be importable, and its
    arguments and result picklable.
    """

    def __init__(self, ranks: int) -> None:
        if ranks < 1:
            raise WorldError("ranks", f"{ranks} is not a number of processes", "Use 1 or more.")
        self.ranks = ranks
        self.open = False
        self.workers: list[Worker] = []  # as many as a call has needed so far

    def __enter__(self) -> Team:
        self.open = True
        return self

    def __exit__(self, *exit: object) -> None:
        self.open = False
        while self.workers:
            self.workers.pop().kill()

    def run(
        self,
        function: Callable[..., Any],
        *args: Any,
        ranks: int | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> list[Any]:
        """Call `function(*args)` on `ranks` of the team, else on all; results by rank.

        The first failure is raised here: as it is, with a note of its rank and place, or as a
        `WorldError` where a rank died, hung, or raised what cannot travel.
        """
        count = self._count(ranks)
        call = pickled(function, args)
        while len(self.workers) < count:
            self.workers.append(Worker())
        store = dist.TCPStore(ADDRESS, 0, is_master=True, wait_for_workers=False)
        for rank, worker in enumerate(self.workers[:count]):
            job = Job(call, environment(rank, count, store.port), threads_of_each(count))
            with suppress(OSError):  # already dead: `collect` finds that out and says so
                worker.connection.send_bytes(pickle.dumps(job))
        try:
            answers = collect(self.workers[:count], timeout_seconds)
        except BaseException:  # Ctrl-C: nobody will listen to these answers
            self.replace(range(count))
            raise
        silent = [rank for rank in range(count) if answers.get(rank) is None]
        problem = first_failure(answers, self.workers[:count], timeout_seconds)
        self.replace(silent)
        if problem:
            raise problem
        return [answer.value for _, answer in sorted(answers.items()) if answer]

    def _count(self, ranks: int | None) -> int:
        if not self.open:
            problem = "this team is not at work"
            raise WorldError("ranks", problem, f"Write 'with Team({self.ranks}) as team:' first.")
        count = self.ranks if ranks is None else ranks
        if not 1 <= count <= self.ranks:
            problem = f"{count} asked of a team of {self.ranks}"
            raise WorldError("ranks", problem, f"Use 1 to {self.ranks}, or make a larger team.")
        return count

    def replace(self, ranks: Iterable[int]) -> None:
        """New processes for these ranks."""
        for rank in ranks:
            self.workers[rank].kill()
            self.workers[rank] = Worker()


def run(
    function: Callable[..., Any],
    ranks: int,
    *args: Any,
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> list[Any]:
    """Call `function(*args)` once on so many ranks; the results by rank."""
    with Team(ranks) as team:
        return team.run(function, *args, timeout_seconds=timeout_seconds)


def pickled(function: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
    try:
        return pickle.dumps((function, args))
    except (pickle.PicklingError, AttributeError, TypeError) as refused:
        raise WorldError(
            "ranks",
            f"the function or its arguments cannot be sent to another process ({refused})",
            "Define it at the top of a module, and give it plain values.",
        ) from refused


def environment(rank: int, ranks: int, port: int) -> dict[str, str]:
    """What torchrun sets, and the interface over which ranks of one machine find each other."""
    loops = [name for _, name in socket.if_nameindex() if name in ("lo", "lo0")]
    interface = os.environ.get("GLOO_SOCKET_IFNAME", *loops[:1])
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": ADDRESS,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # rank 0 is to find the store, not to make it
        "TORCHELASTIC_RESTART_COUNT": "0",
        **({"GLOO_SOCKET_IFNAME": interface} if interface else {}),
    }


def threads_of_each(ranks: int) -> int:
    """The ranks share the threads that this process would use alone."""
    return max(1, torch.get_num_threads() // ranks)


def collect(workers: list[Worker], timeout_seconds: float) -> dict[int, Answer | None]:
    """Answers by rank, until all are there or time is up; None from a rank that died."""
    answers: dict[int, Answer | None] = {}
    deadline = time.monotonic() + timeout_seconds
    waiting: dict[Any, int] = {worker.connection: rank for rank, worker in enumerate(workers)}
    while waiting and (left := deadline - time.monotonic()) > 0:
        for connection in wait(list(waiting), left):
            assert isinstance(connection, Connection)
            rank = waiting.pop(connection)
            try:
                answers[rank] = pickle.loads(connection.recv_bytes())
            except (EOFError, OSError):
                answers[rank] = None
            answer = answers[rank]
            if answer is None or answer.error is not None:
                deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
    return answers


def first_failure(
    answers: dict[int, Answer | None], workers: list[Worker], timeout_seconds: float
) -> BaseException | None:
    """What went wrong first. A death comes before any error: the others only noticed it."""
    for rank, answer in sorted(answers.items()):
        if answer is None:
            workers[rank].process.join(GRACE_SECONDS)
            how = ending(workers[rank].process.exitcode)
            return failure(rank, len(workers), how)
    failed = {rank: a for rank, a in answers.items() if a and a.error is not None}
    if failed:
        rank, answer = min(failed.items(), key=lambda item: item[1].moment)
        error = answer.error
        if isinstance(error, str):
            error = failure(rank, len(workers), f"failed ({error})")
        assert error is not None
        error.add_note(f"on rank {rank} of {len(workers)}:\n{answer.trace}")
        return error
    late = [rank for rank in range(len(workers)) if rank not in answers]
    how = f"did not finish within {timeout_seconds:g} s"
    return failure(late[0], len(workers), how) if late else None


def failure(rank: int, ranks: int, how: str) -> WorldError:
    remedy = "Try one rank first: what fails there fails everywhere."
    return WorldError("ranks", f"rank {rank} of {ranks} {how}", remedy)


def ending(code: int | None) -> str:
    if code is not None and code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"ended by itself with exit code {code}"


def serve(connection: Connection) -> None:
    """A worker's life: job after job, until the team closes or its process is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the team's process, which ends us
    threading.Thread(target=leave_with_parent, daemon=True).start()
    while True:
        try:
            job = pickle.loads(connection.recv_bytes())
        except EOFError:
            return
        before = dict(os.environ)
        answer = work(job)
        if answer.error is None:
            clean_up(before)
        connection.send_bytes(pickle.dumps(answer))
        if answer.error is not None:  # after it was told: others fail of what this takes away
            clean_up(before)


def leave_with_parent() -> None:
    """End this process when the one that started it is gone, in whatever it is busy with."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def work(job: Job) -> Answer:
    os.environ.update(job.environment)
    torch.set_num_threads(job.threads)
    try:
        function, args = pickle.loads(job.call)
        value = function(*args)
        pickle.dumps(value)  # here, so that a value that cannot travel is this call's failure
        return Answer(value)
    except BaseException as error:
        return Answer(None, portable(error), traceback.format_exc(), time.monotonic())


def clean_up(environ: dict[str, str]) -> None:
    """Leave no group and no variables to the next job."""
    if dist.is_initialized():
        dist.destroy_process_group()
    os.environ.clear()
    os.environ.update(environ)


def portable(error: BaseException) -> BaseException | str:
    """The error itself where it survives the way between processes, else its first line."""
    try:
        same = pickle.loads(pickle.dumps(error))
        if isinstance(error, StepladderError) or str(same) == str(error):
            return error
    except Exception:
        pass
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
