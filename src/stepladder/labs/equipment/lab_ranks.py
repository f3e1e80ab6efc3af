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
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from traceback import FrameSummary
from typing import Any

from stepladder.launch import Failure, Ranks
from stepladder.seam.inductor import import_compiler

from .recorder import with_recorder

LEFT_ALONE_SECONDS = 15.0  # how long a rank may work on when another is done
STARTS: list[list[int]] = []  # open blocks of `starts`


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
    for noted in STARTS:
        noted.append(num_ranks)
    function = with_recorder(function)
    import_compiler()  # an optimizer's first step needs it: once here rather than on every rank
    pool = Ranks(
        num_ranks,
        start="fork",
        threads=1,
        grace_seconds=1.0,
        left_alone_seconds=LEFT_ALONE_SECONDS,
    )
    with tempfile.TemporaryDirectory() as folder, pool:
        store = f"file://{folder}/store"  # reached from any network namespace
        if join:
            found = pool.attempt(function, args, None, store, timeout_seconds)
        else:
            given = (function, num_ranks, store, args)
            found = pool.attempt(call_with_place, given, timeout_seconds=timeout_seconds)
    if isinstance(found, Failure):
        error = found.exception()
        frames = [FrameSummary(*frame) for frame in found.frames]
        error.frames = frames  # type: ignore[attr-defined]  # a learner is shown their own lines
        raise error
    return found


@contextlib.contextmanager
def starts() -> Iterator[list[int]]:
    """Block that notes how many ranks each call starts, whoever makes it."""
    noted: list[int] = []
    STARTS.append(noted)
    try:
        yield noted
    finally:
        STARTS.remove(noted)


def call_with_place(
    function: Callable[..., Any], num_ranks: int, store: str, args: tuple[Any, ...]
) -> Any:
    return function(int(os.environ["RANK"]), num_ranks, store, *args)


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
