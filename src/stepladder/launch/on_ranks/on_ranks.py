"""Several ranks from a notebook's cell: `on_ranks(function, 2)` calls a function on each.

A function of a cell has no file that another process could import, and a fork of a kernel copies
its threads' locks and its GPU's context into processes that cannot use them. So ranks are new
processes, and the function travels by value with what it refers to (cloudpickle, as Ray, Dask and
joblib send theirs): other cells' functions, classes and numbers need not be repeated in it.

What ranks write is shown in the cell as it comes. The first failure is raised here in a line, with
that rank's last lines as a note; the other ranks then end, as all of them do when the cell is
interrupted.
"""

from __future__ import annotations

import linecache
import math
from collections.abc import Callable
from pathlib import Path
from traceback import FrameSummary, StackSummary
from typing import Any, TypeVar

from stepladder.errors import LostRank, StepladderError, WorldError
from stepladder.world import Place

from .failure import Failure
from .ranks import Ranks

Result = TypeVar("Result")

GRACE_SECONDS = 1.0
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
    refuse_inside_a_rank(ranks)
    if not callable(function):
        problem = f"a {type(function).__name__} cannot be called"
        raise WorldError("function", problem, "Give a function; its arguments follow the ranks.")
    if timeout_seconds is not None and not timeout_seconds > 0:
        problem = f"{timeout_seconds} is not a number of seconds"
        raise WorldError("timeout_seconds", problem, "Use a number above 0, or none.")
    seconds = math.inf if timeout_seconds is None else timeout_seconds
    # Torch is left to the function: one that needs none starts at once.
    pool = Ranks(ranks, import_torch=False, show_output=True, grace_seconds=GRACE_SECONDS)
    with pool:
        found = pool.attempt(function, args, timeout_seconds=seconds)
        if isinstance(found, Failure):
            raise notebook_error(found)
        pool.finish()
        return found


def refuse_inside_a_rank(ranks: int) -> None:
    place = Place.from_environment()
    if place.launched:
        raise WorldError(
            "ranks",
            f"{ranks} asked for in a process that is rank {place.rank} of {place.num_ranks}",
            "Call the function itself: its ranks are started already.",
        )


def notebook_error(failure: Failure) -> StepladderError:
    """A user's mistake as it is, any other error in a line; the rank's last lines as a note."""
    error = failure.error
    if not isinstance(error, StepladderError):
        kind = LostRank if failure.lost else WorldError
        error = kind("ranks", failure.sentence, REMEDY)
        error.__cause__ = failure.error
    lines = list(failure.last_lines)
    if failure.lost:
        lines += failure.details.splitlines()
    else:
        frames = [shown_frame(*frame) for frame in failure.frames[-FRAMES:]]
        lines += "".join(StackSummary.from_list(frames).format()).splitlines()
        lines += failure.message.splitlines()
    if lines:
        error.add_note("\n".join([f"The last lines of rank {failure.rank}:", *lines]))
    return error


def shown_frame(file: str, line: int, function: str) -> FrameSummary:
    """A line of a traceback. The text of a cell is known to its kernel and nowhere else."""
    text = linecache.getline(file, line)
    where = file if Path(file).exists() else "a cell"
    return FrameSummary(where, line, function, line=text)
