"""Several ranks from a notebook's cell: `on_ranks(function, 2)` calls a function on each.

A function of a cell has no file that another process could import, and a fork of a kernel copies
its threads' locks and its GPU's context into processes that cannot use them. So ranks are new
processes, and the function travels by value with what it refers to (cloudpickle, as Ray, Dask and
joblib send theirs): other cells' functions, classes and numbers need not be repeated in it.

A rank finds itself as under torchrun: the variables are set, `sl.climb` joins by itself, a bare
`init_process_group()` does too. What ranks write is shown in the cell as it comes. The first
failure is raised here in a line, with that rank's last lines as a note; the other ranks then end,
as all of them do when the cell is interrupted.

It is called `on_ranks` because that is how it reads, `sl.on_ranks(train, 2)`, as the labs' does;
`sl.launch` would be a function until somebody imports the package of that name.
"""

from __future__ import annotations

import linecache
import math
import os
import pickle
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from selectors import DefaultSelector
from traceback import FrameSummary, StackSummary
from typing import Any, TypeVar

import cloudpickle
import torch.distributed as dist

from stepladder.errors import LostRank, StepladderError, WorldError
from stepladder.launch.local.start_local import surroundings
from stepladder.world import Place

from .rank_output import Rank, follow, listen, start

Result = TypeVar("Result")

ADDRESS = "127.0.0.1"
GRACE_SECONDS = 1.0  # for the other ranks' words, once one has failed
LOOK_SECONDS = 0.05  # between looks whether a rank that wrote its last has left
REMEDY = "Its last lines are below. What fails on one rank too is easier to find there."
FRAMES = 6  # of its traceback


def on_ranks(
    function: Callable[..., Result],
    ranks: int,
    *args: Any,
    timeout_seconds: float | None = None,
) -> list[Result]:
    """Call `function(*args)` on so many new processes of this machine; the results by rank.

    The function may be defined in a notebook's cell. It runs as under torchrun.

    Args:
        timeout_seconds: end all ranks after so long; None: wait until they are done.

    >>> import os, stepladder as sl
    >>> sl.on_ranks(lambda: int(os.environ["RANK"]), 2)
    [0, 1]
    """
    check(ranks)
    call = packed(function, args)
    meeting = dist.TCPStore(ADDRESS, 0, is_master=True, wait_for_workers=False)
    team: list[Rank] = []
    try:
        for index in range(ranks):
            team.append(start(index, environment(index, ranks, meeting.port, os.environ)))
        for rank in team:
            with suppress(OSError):  # dead already: found out and told below
                rank.connection.send_bytes(pickle.dumps((sys.path, call)))
        return collect(team, timeout_seconds)
    finally:  # an interrupted cell as well
        for rank in team:
            rank.close()


def check(ranks: int) -> None:
    if not isinstance(ranks, int) or ranks < 1:
        raise WorldError("ranks", f"{ranks} is not a number of processes", "Use 1 or more.")
    place = Place.from_environment()
    if place.launched:
        raise WorldError(
            "ranks",
            f"{ranks} asked for in a process that is rank {place.rank} of {place.num_ranks}",
            "Call the function itself: its ranks are started already.",
        )


def packed(function: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
    try:
        return cloudpickle.dumps((function, args))
    except Exception as refused:
        raise WorldError(
            "ranks",
            f"the function or what it refers to cannot be sent to another process ({refused})",
            "Open files, locks and runs stay where they are: make them inside the function.",
        ) from refused


def environment(rank: int, ranks: int, port: int, environ: Mapping[str, str]) -> dict[str, str]:
    """What torchrun sets, on top of what is set here."""
    place = {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": ranks}
    return {
        **environ,
        **surroundings(ranks, environ),
        **{name: str(number) for name, number in place.items()},
        "MASTER_ADDR": ADDRESS,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # rank 0 is to find the store, not to make it
    }


def collect(team: list[Rank], timeout_seconds: float | None) -> list[Any]:
    """Show what the ranks write until all have left; their results, or the first failure."""
    with DefaultSelector() as streams:
        follow(team, streams)
        hear_all(team, streams, timeout_seconds)
        done = not any(rank.failed or rank.silent for rank in team)
        for rank in team:
            rank.release() if done else rank.kill()
        while any(rank.process.poll() is None for rank in team):
            listen(streams, LOOK_SECONDS)
        while listen(streams, 0):
            pass
    if not done:
        raise first_failure(team, timeout_seconds)
    return [pickle.loads(rank.answer["value"]) for rank in team if rank.answer]


def hear_all(team: list[Rank], streams: DefaultSelector, timeout_seconds: float | None) -> None:
    """Listen until every rank has answered, time is up, or one has failed and the others had
    their moment to say that they failed before it."""
    deadline = time.monotonic() + (math.inf if timeout_seconds is None else timeout_seconds)
    failed = False
    while any(rank.silent for rank in team) and (left := deadline - time.monotonic()) > 0:
        listen(streams, min(left, GRACE_SECONDS))
        for rank in team:
            rank.look()
        if not failed and any(rank.failed for rank in team):
            failed, deadline = True, min(deadline, time.monotonic() + GRACE_SECONDS)


def first_failure(team: list[Rank], timeout_seconds: float | None) -> StepladderError:
    """What went wrong first. A death comes before any error: the others only noticed it."""
    ranks = len(team)
    for rank in team:
        if rank.lost:
            how = ending(rank.process.returncode)
            return noted(LostRank("ranks", f"rank {rank.index} of {ranks} {how}", REMEDY), rank)
    failed = [rank for rank in team if rank.failed]
    if not failed:
        late = next(rank for rank in team if rank.silent)
        problem = f"rank {late.index} of {ranks} did not finish within {timeout_seconds:g} s"
        return noted(LostRank("ranks", problem, REMEDY), late)
    first = min(failed, key=lambda rank: told(rank)["moment"])
    answer = told(first)
    error = None
    with suppress(Exception):  # a kind of error that is known over there alone
        error = pickle.loads(answer["error"])
    if isinstance(error, StepladderError):
        return noted(error, first)
    said = answer["said"].strip().partition("\n")[0]
    problem = f"rank {first.index} of {ranks} failed with {answer['kind']}: {said}"
    raised = noted(WorldError("ranks", problem, REMEDY), first)
    raised.__cause__ = error
    return raised


def told(rank: Rank) -> Mapping[str, Any]:
    assert rank.answer is not None
    return rank.answer


def ending(code: int) -> str:
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"ended by itself with exit code {code}"


def noted(error: StepladderError, rank: Rank) -> StepladderError:
    """The error with the rank's last lines, and where it was if it has said so."""
    lines = list(rank.last)
    if rank.answer is not None:
        answer = rank.answer
        frames = [shown_frame(*frame) for frame in answer["frames"][-FRAMES:]]
        lines += "".join(StackSummary.from_list(frames).format()).splitlines()
        lines += f"{answer['kind']}: {answer['said']}".splitlines()
    if lines:
        error.add_note("\n".join([f"The last lines of rank {rank.index}:", *lines]))
    return error


def shown_frame(file: str, line: int, function: str) -> FrameSummary:
    """A line of a traceback. The text of a cell is known to its kernel and nowhere else."""
    text = linecache.getline(file, line)
    where = file if Path(file).exists() else "a cell"
    return FrameSummary(where, line, function, line=text)
