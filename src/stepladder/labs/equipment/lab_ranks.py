"""Several ranks for a lesson: `on_ranks(function, 2)` calls a function on real processes.

The ranks are forks of this process, so a function of a learner's file needs no import path and
torch is imported once. They meet over gloo on this machine. `train.py` under torchrun does the same
with processes of its own; a lesson should not need a launcher. They find torchrun's variables set,
so that `stepladder.climb` works in them as it does there.

Nobody calls backward before a fork: where torch finds a GPU, autograd starts threads that a fork
does not have. What a lesson compares with is computed on a rank as well, if need be on one alone.
"""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
import torch.distributed as dist

from stepladder.errors import LostRank
from stepladder.seam.inductor import import_compiler

LEFT_ALONE_SECONDS = 15.0  # how long a rank may work on when another is done
NOTICED_SECONDS = 1.0  # in which the end of a rank is seen here, once other ranks have seen it


def on_ranks(
    function: Callable[..., Any],
    num_ranks: int,
    *args: Any,
    join: bool = True,
    timeout_seconds: float = 60.0,
) -> list[Any]:
    """The function's result on every rank; a rank's error is raised here.

    Without `join` it is called with its rank, the number of ranks and where they meet (for
    `init_process_group`) before its arguments: joining is then its own business.
    """
    import_compiler()  # an optimizer's first step needs it: once here rather than on every rank
    context = get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        started = []
        for rank in range(num_ranks):
            ours, theirs = context.Pipe()
            place = (rank, num_ranks, f"file://{store}")
            process = context.Process(target=serve, args=(theirs, function, place, join, args))
            process.start()
            theirs.close()
            started.append((process, ours))
        try:
            return collect([ours for _, ours in started], timeout_seconds)
        finally:
            for process, _ in started:
                process.kill()
                process.join()


def serve(
    connection: Connection,
    function: Callable[..., Any],
    place: tuple[int, int, str],
    join: bool,
    args: tuple[Any, ...],
) -> None:
    """One rank: join the group, call the function, send its result or its error home."""
    rank, num_ranks, meeting = place
    torch.set_num_threads(1)
    os.environ.update(variables(rank, num_ranks))
    try:
        if join:
            dist.init_process_group("gloo", meeting, rank=rank, world_size=num_ranks)
        answer = pickle.dumps((True, function(*(() if join else place), *args)))
    except Exception as raised:
        answer = pickle.dumps((False, portable(raised)))
    sys.stdout.flush()
    sys.stderr.flush()
    connection.send_bytes(answer)  # pickled here: torch would share memory with a rank that ends
    # A rank that is done must not leave while others still talk to it: it stays until it is killed,
    # or whoever waits for the answers is gone.
    with contextlib.suppress(EOFError, OSError):
        connection.recv_bytes()
    os._exit(0)


def variables(rank: int, num_ranks: int) -> dict[str, str]:
    """What torchrun sets; the port is nobody's, since the group is made already."""
    place = {"RANK": rank, "WORLD_SIZE": num_ranks, "LOCAL_RANK": rank}
    found = {name: str(value) for name, value in place.items()}
    return {**found, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}


@contextlib.contextmanager
def hushed() -> Iterator[None]:
    """Block in which torch's warnings to experts (written past Python) are not shown."""
    sys.stderr.flush()
    shown, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(shown, 2)
        os.close(shown)
        os.close(nowhere)


def portable(raised: Exception) -> Exception:
    """The error with its lines written down, since a traceback does not travel."""
    lines = list(traceback.extract_tb(raised.__traceback__))
    try:
        pickle.dumps(raised)
    except Exception:  # an error with arguments that stay here: its words travel
        raised = RuntimeError(f"{type(raised).__name__}: {raised}")
    raised.frames = lines  # type: ignore[attr-defined]
    return raised


def collect(connections: list[Connection], timeout_seconds: float) -> list[Any]:
    """Results in the order of ranks; the first error is everybody's."""
    results: dict[int, Any] = {}
    waiting = list(connections)
    while waiting:
        ready = wait(waiting, min(timeout_seconds, LEFT_ALONE_SECONDS if results else math.inf))
        if not ready:
            raise LostRank("ranks", *late([connections.index(one) for one in waiting], results))
        for connection in ready:
            assert isinstance(connection, Connection)
            rank = connections.index(connection)
            try:
                good, value = pickle.loads(connection.recv_bytes())
            except EOFError:
                raise LostRank("ranks", f"rank {rank} ended without a result") from None
            waiting.remove(connection)
            if not good:
                if isinstance(value, RuntimeError):  # gloo's, when the other end is gone
                    blame_the_lost(connections, waiting)
                raise value
            results[rank] = value
    return [results[rank] for rank in range(len(connections))]


def late(ranks: list[int], results: dict[int, Any]) -> tuple[str, str]:
    """Who still waits, and for whom."""
    remedy = "Every rank must call the same collectives in the same order."
    if results:
        done = ", ".join(map(str, sorted(results)))
        return f"rank {ranks[0]} still waits for something when rank {done} is done", remedy
    return f"{len(ranks)} ranks did not answer in time", remedy


def blame_the_lost(connections: list[Connection], waiting: list[Connection]) -> None:
    """A rank that ended explains the errors of those that waited for it."""
    deadline = time.monotonic() + NOTICED_SECONDS
    others = list(waiting)
    while ready := wait(others, max(0.0, deadline - time.monotonic())) if others else []:
        for connection in ready:
            assert isinstance(connection, Connection)
            others.remove(connection)
            try:
                connection.recv_bytes()
            except EOFError:
                rank = connections.index(connection)
                raise LostRank("ranks", f"rank {rank} ended without a result") from None
