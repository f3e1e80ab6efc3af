"""Several ranks for a lesson: `on_ranks(function, 2)` calls a function on real processes.

The ranks are forks of this process, so a function of a learner's file needs no import path and
torch is imported once. They meet over gloo on this machine. `train.py` under torchrun does the same
with processes of its own; a lesson should not need a launcher.
"""

from __future__ import annotations

import os
import pickle
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
import torch.distributed as dist

from stepladder.errors import LostRank


def on_ranks(
    function: Callable[..., Any], num_ranks: int, *args: Any, timeout_seconds: float = 60.0
) -> list[Any]:
    """The function's result on every rank; a rank's error is raised here."""
    context = get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        started = []
        for rank in range(num_ranks):
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(
                target=serve, args=(theirs, function, rank, num_ranks, store, args)
            )
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
    rank: int,
    num_ranks: int,
    store: str,
    args: tuple[Any, ...],
) -> None:
    """One rank: join the group, call the function, send its result or its error home."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=num_ranks)
    try:
        connection.send((True, function(*args)))
    except Exception as raised:
        connection.send((False, portable(raised)))
    dist.destroy_process_group()


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
        ready = wait(waiting, timeout_seconds)
        if not ready:
            raise LostRank(
                "ranks",
                f"{len(waiting)} of {len(connections)} ranks did not answer in "
                f"{timeout_seconds:.0f} s",
                "Every rank must call the same collectives in the same order.",
            )
        for connection in ready:
            assert isinstance(connection, Connection)
            rank = connections.index(connection)
            try:
                good, value = connection.recv()
            except EOFError:
                raise LostRank("ranks", f"rank {rank} ended without a result") from None
            if not good:
                raise value
            results[rank] = value
            waiting.remove(connection)
    return [results[rank] for rank in range(len(connections))]
