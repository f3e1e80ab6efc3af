"""Locks on folders of checkpoints, so that two processes that save into one folder take turns.

They are the kernel's (`flock`, on the folder itself): no file is left behind, and a process that
dies holds none. A save holds a shared lock on the folder it writes in, which tells it from what a
killed save left; a commit holds an exclusive one on the run's folder. A file system without locks
gives none.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from stepladder.errors import RecordError

WAIT_SECONDS = 120.0  # for another process to end its commit
POLL_SECONDS = 0.02
BUSY = {errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES}

OPEN: set[int] = set()  # handles of locked folders


@contextmanager
def lock_folder(
    folder: Path, *, shared: bool = False, wait_seconds: float = WAIT_SECONDS
) -> Iterator[bool]:
    """A block in which this process has the folder's lock; False where another one keeps it."""
    handle = os.open(folder, os.O_RDONLY)
    OPEN.add(handle)
    try:
        yield take_lock(handle, fcntl.LOCK_SH if shared else fcntl.LOCK_EX, wait_seconds)
    finally:
        if handle in OPEN:  # else this is a forked child, and it is closed
            OPEN.discard(handle)
            os.close(handle)


@contextmanager
def make_folder_locked(folder: Path) -> Iterator[None]:
    """A block in which a folder is there, under a shared lock of this process.

    Before it is locked, another process may take it for abandoned and delete it.
    """
    with ExitStack() as held:
        while not lock_made_folder(folder, held):
            pass
        yield


def lock_made_folder(folder: Path, held: ExitStack) -> bool:
    """Whether the folder that was locked is the one that has this name."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        made = folder.stat().st_ino
        held.enter_context(lock_folder(folder, shared=True))
        return folder.stat().st_ino == made
    except FileNotFoundError:
        return False


def take_lock(handle: int, kind: int, wait_seconds: float) -> bool:
    deadline = time.monotonic() + wait_seconds
    while True:
        try:
            fcntl.flock(handle, kind | fcntl.LOCK_NB)
            return True
        except OSError as refused:
            if refused.errno not in BUSY:  # such a file system has no locks
                return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_SECONDS)


@contextmanager
def take_turn(root: Path) -> Iterator[None]:
    """A block in which no other process commits to this run's folder, or deletes from it."""
    with lock_folder(root, wait_seconds=WAIT_SECONDS) as taken:
        if not taken:
            raise RecordError(
                "run folder",
                f"{root} has been locked by another process for {WAIT_SECONDS:.0f} s",
                "Save each run into a folder of its own.",
            )
        yield


def close_in_child() -> None:
    """A forked data worker must not keep the locks of the run that forked it."""
    for handle in OPEN:
        os.close(handle)
    OPEN.clear()


os.register_at_fork(after_in_child=close_in_child)
