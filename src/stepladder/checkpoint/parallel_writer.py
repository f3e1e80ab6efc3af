"""A file written and hashed at once, several stretches of it side by side.

A thread takes a stretch of 8 MiB through both: what was just hashed is written while it is still in
the processor's cache. The system is asked to begin at once with carrying it to the disk, so that
little is left to wait for when all of it must be there.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import cache
from typing import Any

from . import hashing as digest

PIECE = 2**20  # hashed, then written
WAITING = 8  # stretches
BEGIN_WRITING = 2  # Linux's SYNC_FILE_RANGE_WRITE: begin, and do not wait


class Stretches:
    """Takes a file's bytes in order; nothing is copied.

    Bytes that wait for their turn cannot be let go of, so only a few stretches ever wait. Open
    while the file is: nobody writes to it any more when this has been left.
    """

    def __init__(self, pool: ThreadPoolExecutor, file: int, hash_name: str) -> None:
        self.pool, self.file = pool, file
        self.take = digest.hashes()[hash_name]
        self.begun: list[Future[bytes]] = []
        self.rest: list[memoryview] = []  # of the stretch that is not full yet
        self.missing = digest.STRETCH
        self.size = 0

    def __enter__(self) -> Stretches:
        return self

    def __exit__(self, *_: object) -> None:
        wait(self.begun)

    def add(self, data: memoryview) -> None:
        """Write these bytes next; they must stay as they are until `result`."""
        while data:
            part, data = data[: self.missing], data[self.missing :]
            self.rest.append(part)
            self.missing -= len(part)
            if not self.missing:
                self._start()

    def result(self) -> str:
        """The file's hash, once all of it is written."""
        if self.rest:
            self._start()
        parts = b"".join(stretch.result() for stretch in self.begun)
        return self.take(parts).hexdigest()

    def _start(self) -> None:
        self.begun.append(self.pool.submit(put, self.file, self.size, self.rest, self.take()))
        self.size += digest.STRETCH - self.missing
        self.rest, self.missing = [], digest.STRETCH
        if len(self.begun) > WAITING:
            self.begun[-WAITING].result()


def put(file: int, first: int, parts: list[memoryview], running: Any) -> bytes:
    """Write a stretch where it belongs; its hash."""
    at = first
    for part in parts:
        for start in range(0, len(part), PIECE):
            piece = part[start : start + PIECE]
            running.update(piece)
            while piece:
                written = os.pwrite(file, piece, at)
                piece, at = piece[written:], at + written
    if begin := begin_writing():
        begin(file, first, at - first, BEGIN_WRITING)
    return running.digest()


@cache
def begin_writing() -> Callable[..., Any] | None:
    """Linux's call to start carrying a part of a file to the disk; only a hint, none elsewhere."""
    call: Any = getattr(ctypes.CDLL(None), "sync_file_range", None)
    if call is not None:
        call.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    return call
