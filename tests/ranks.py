"""Several ranks in one test: `run(function, 2, *args)` calls a function on real processes.

The processes are kept for the whole session and reused, because importing torch costs seconds
each. Every call gets a process group of its own (gloo) and gives it back; a rank that failed to
answer is killed and replaced, so no test sees what another left behind. A rank that is done stays
in its group until all are, since others may still talk to it; one that failed says so and leaves
at once, so that others need not wait for it: in this order, or what its leaving does to others
could be heard of first.

A function must be importable (no lambda, no closure) and its result picklable. It finds the
process group made and the launcher's variables set; with `init=False` only the variables, for
tests of `stepladder.world.join` itself.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import gc
import os
import pickle
import random
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from .ports import free_port

READY, LEAVE, LEAVE_SECONDS = b"ready", b"leave", 60
START_SECONDS = 180  # to import torch, on a crowded machine
STACK_SECONDS = 20  # to say where it stands
GRACE_SECONDS = 15.0  # for the other ranks to answer once one has failed


class RankError(Exception):
    """A rank died, hung, or failed with an error that cannot travel between processes."""


@dataclass(frozen=True)
class Job:
    """What one rank is asked to do; the call is pickled apart, so that its loading can fail."""

    call: bytes
    path: tuple[str, ...]
    environment: dict[str, str]
    store: str | None  # where the ranks meet; None leaves that to the function


@dataclass(frozen=True)
class Answer:
    moment: float  # which of several failures came first
    trace: str | None  # None: it worked
    value: bytes | None


class Worker:
    """One process that already imported torch and waits for jobs."""

    def __init__(self) -> None:
        self.connection, theirs = get_context("spawn").Pipe()
        self.stacks = Path(tempfile.mkstemp(prefix="ranks-")[1])
        self.process = get_context("spawn").Process(target=serve, args=(theirs, str(self.stacks)))
        self.process.start()
        theirs.close()
        self.ready = False

    def await_ready(self) -> None:
        """A job's time does not count what the process takes to start."""
        if not self.ready:
            assert self.connection.poll(START_SECONDS), "a process of the pool does not start"
            assert self.connection.recv_bytes() == READY
            self.ready = True

    def stack(self) -> str:
        """Where the process stands now, in whatever it hangs."""
        if self.process.is_alive() and self.process.pid:
            os.kill(self.process.pid, signal.SIGUSR2)
            deadline = time.monotonic() + STACK_SECONDS
            while "in <module>" not in self.stacks.read_text() and time.monotonic() < deadline:
                time.sleep(0.05)  # the main thread comes last, and its outermost line at the end
        return self.stacks.read_text()

    def kill(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()
        self.stacks.unlink(missing_ok=True)


POOL: list[Worker] = []


@atexit.register
def dismiss() -> None:
    while POOL:
        POOL.pop().kill()


def run(
    function: Callable[..., Any],
    ranks: int = 2,
    *args: Any,
    init: bool = True,
    timeout_seconds: float = 120,
) -> list[Any]:
    """Call `function(*args)` on every rank; the results by rank, or the first failure.

    The failure keeps its type and gains a note with its rank and where it happened.
    """
    team = hire(ranks)
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        port = free_port()
        for rank, worker in enumerate(team):
            worker.connection.send_bytes(
                pickle.dumps(
                    Job(
                        call=pickle.dumps((function, args)),
                        path=tuple(sys.path),
                        environment=environment(rank, ranks, port),
                        store=f"file://{folder}/store" if init else None,
                    )
                )
            )
        answers = collect(team, timeout_seconds)
        dismiss_group(team, answers)
    return judge(team, answers, timeout_seconds)


def hire(ranks: int) -> list[Worker]:
    """So many processes that live and have started; who died since its last job is replaced."""
    for worker in [worker for worker in POOL if not worker.process.is_alive()]:
        POOL.remove(worker)
        worker.kill()
    while len(POOL) < ranks:
        POOL.append(Worker())
    for worker in POOL[:ranks]:
        worker.await_ready()
    return POOL[:ranks]


def environment(rank: int, ranks: int, port: int) -> dict[str, str]:
    """What torchrun sets."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def collect(team: list[Worker], timeout_seconds: float) -> dict[int, Answer | None]:
    """Answers by rank, until all are there or time is up; None from a rank that died."""
    answers: dict[int, Answer | None] = {}
    deadline = time.monotonic() + timeout_seconds
    open_ranks = {worker.connection: rank for rank, worker in enumerate(team)}
    while open_ranks and (left := deadline - time.monotonic()) > 0:
        for connection in wait(list(open_ranks), left):
            rank = open_ranks.pop(connection)  # type: ignore[arg-type]
            try:
                answers[rank] = pickle.loads(connection.recv_bytes())  # type: ignore[union-attr]
            except (EOFError, OSError):
                answers[rank] = None
            if (answer := answers[rank]) is None or answer.trace:
                deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
    return answers


def dismiss_group(team: list[Worker], answers: dict[int, Answer | None]) -> None:
    """Have all ranks that answered leave their group; whoever cannot is replaced."""
    answered = {rank: team[rank] for rank, answer in answers.items() if answer}
    for rank, worker in answered.items():
        with contextlib.suppress(OSError):  # dead: found out below
            if not answers[rank].trace:
                worker.connection.send_bytes(LEAVE)
    for rank, worker in answered.items():
        try:
            assert worker.connection.poll(LEAVE_SECONDS), f"rank {rank} cannot leave its group"
            worker.connection.recv_bytes()
        except (AssertionError, EOFError, OSError):
            POOL.remove(worker)
            worker.kill()
            if not answers[rank].trace:  # else what it said before goes first
                raise


def judge(
    team: list[Worker], answers: dict[int, Answer | None], timeout_seconds: float
) -> list[Any]:
    """The values of all ranks, or the failure that came first; whoever did not answer goes."""
    silent = [rank for rank in range(len(team)) if answers.get(rank) is None]
    stacks = {rank: team[rank].stack() for rank in silent if rank not in answers}
    for rank in silent:
        POOL.remove(team[rank])
        team[rank].kill()
    failed = {r: a for r, a in answers.items() if a and a.trace}
    if failed:
        raise first_failure(failed, len(team))
    for rank in silent:
        who = f"rank {rank} of {len(team)}"
        if rank in answers:
            raise RankError(f"{who} died with exit code {team[rank].process.exitcode}")
        raise RankError(f"{who} did not finish within {timeout_seconds:g} s:\n{stacks[rank]}")
    values = [answers[rank] for rank in range(len(team))]
    return [pickle.loads(answer.value) for answer in values if answer and answer.value]


def first_failure(failed: dict[int, Answer], ranks: int) -> BaseException:
    rank, answer = min(failed.items(), key=lambda item: item[1].moment)
    note = f"on rank {rank} of {ranks}:\n{answer.trace}"
    try:
        error = pickle.loads(answer.value or b"")
    except Exception:
        return RankError(note)
    error.add_note(note)
    return error


def serve(connection: Connection, stacks: str) -> None:
    """A worker's life: job after job until the other end closes."""
    from stepladder.cli.import_torch import loading

    with loading():
        import torch  # noqa: F401  the seconds this costs are why the process is kept

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the session, which ends us
    with open(stacks, "w") as file:
        faulthandler.register(signal.SIGUSR2, file=file, all_threads=True)
        settle()
        connection.send_bytes(READY)
        while True:
            try:
                work(pickle.loads(connection.recv_bytes()), connection)
            except EOFError:
                return


def work(job: Job, connection: Connection) -> None:
    before, folder = dict(os.environ), os.getcwd()
    answer = attempt(job)
    connection.send_bytes(pickle.dumps(answer))
    if not answer.trace:
        connection.recv_bytes()  # LEAVE
    clean_up(before)
    os.chdir(folder)
    connection.send_bytes(LEAVE)


def attempt(job: Job) -> Answer:
    os.environ.update(job.environment)
    sys.path[:] = job.path
    try:
        return Answer(time.monotonic(), None, pickle.dumps(called(job)))
    except BaseException as error:
        moment, trace = time.monotonic(), traceback.format_exc()
        try:
            value = pickle.dumps(error)
            pickle.loads(value)
        except Exception:
            value = None
        return Answer(moment, trace, value)


def called(job: Job) -> Any:
    import torch.distributed as dist

    function, args = pickle.loads(job.call)
    if job.store:
        world = int(job.environment["WORLD_SIZE"])
        rank = int(job.environment["RANK"])
        dist.init_process_group("gloo", init_method=job.store, rank=rank, world_size=world)
        dist.barrier()  # a rank that is done at once must not leave while others still connect
    return function(*args)


def clean_up(environ: dict[str, str]) -> None:
    """Leave the process as if no test had used it."""
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()
    # A group that could not be made was counted, and the next one is called by that count: ranks
    # that count differently never meet.
    dist.distributed_c10d._world.group_count = 0
    os.environ.clear()
    os.environ.update(environ)
    settle()


def settle() -> None:
    """What every job finds: the first of a process, which any test may be given, as any other."""
    import torch

    from stepladder.world.world import forget_routes

    # A group that is remembered by torch, or in a circle of references, lives with three threads
    # that wake a hundred times a second. What else is there by now stays, and need not be walked
    # again; a group among it would stay too.
    if "torch.distributed.tensor" in sys.modules:
        forget_routes()
    gc.collect()
    gc.freeze()
    torch.set_default_dtype(torch.float32)
    torch.set_float32_matmul_precision("highest")
    torch.use_deterministic_algorithms(False)
    torch.set_grad_enabled(True)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    random.seed(0)
