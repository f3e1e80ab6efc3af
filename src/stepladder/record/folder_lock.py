"""A lock that allows one writer per run folder and is released when its holder dies.

The lock is the kernel's (`flock`), so a killed run leaves none behind. The file names its holder
for the error message, and stays when the run ends: deleting it would race with a process about to
lock it. A forked child closes its copy, or a data worker that outlives a killed run would keep the
lock.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from pathlib import Path
from weakref import WeakSet

from stepladder.errors import RecordError

LOCK_FILE = "journal.lock"
NO_LOCK_SUPPORT = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}

LOCKS: WeakSet[FolderLock] = WeakSet()


class FolderLock:
    """This process's right to write to a run folder."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / LOCK_FILE
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as refused:
            if refused.errno not in NO_LOCK_SUPPORT:  # such a file system has no locks
                raise self._refusal() from refused
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        LOCKS.add(self)

    def _refusal(self) -> RecordError:
        holder = os.pread(self._file, 200, 0).decode(errors="replace").strip()
        self.release()
        return RecordError(
            "run folder",
            f"{self.path.parent} is being written by another run ({holder or 'just starting'})",
            "Name another folder, or stop that run first.",
        )

    def release(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def release_in_child() -> None:
    for lock in list(LOCKS):
        lock.release()


os.register_at_fork(after_in_child=release_in_child)
