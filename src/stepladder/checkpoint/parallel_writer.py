"""Writing and hashing a file at once, in parallel chunks.

A thread hashes and writes one chunk of 8 MiB, block by block, so that a block is written while it
is still in the processor's cache. The kernel is asked to start writing the chunk to disk at once,
so that the final fsync has little left to do.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import cache
from typing import Any

from . import hashing

BLOCK_BYTES = 2**20  # hashed, then written
MAX_PENDING = 8  # chunks
SYNC_FILE_RANGE_WRITE = 2  # start writing to disk, do not wait


class ChunkWriter:
    """Writes a file's bytes, given in order, without copying them.

    Pending bytes stay in memory, so only a few chunks may be pending. A context manager: once it
    exits, no thread writes to the file any more.
    """

    def __init__(self, pool: ThreadPoolExecutor, file: int, hash_name: str) -> None:
        self.pool, self.file = pool, file
        self.algorithm = hashing.available_hashes()[hash_name]
        self.pending: list[Future[bytes]] = []
        self.parts: list[memoryview] = []  # of the chunk that is not full yet
        self.missing = hashing.CHUNK_BYTES
        self.size = 0

    def __enter__(self) -> ChunkWriter:
        return self

    def __exit__(self, *_: object) -> None:
        wait(self.pending)

    def add(self, data: memoryview) -> None:
        """Write these bytes next; they must not change until `result` returns."""
        while data:
            part, data = data[: self.missing], data[self.missing :]
            self.parts.append(part)
            self.missing -= len(part)
            if not self.missing:
                self._start()

    def result(self) -> str:
        """Wait until the whole file is written, and return its hash."""
        if self.parts:
            self._start()
        digests = b"".join(chunk.result() for chunk in self.pending)
        return self.algorithm(digests).hexdigest()

    def _start(self) -> None:
        self.pending.append(
            self.pool.submit(write_chunk, self.file, self.size, self.parts, self.algorithm())
        )
        self.size += hashing.CHUNK_BYTES - self.missing
        self.parts, self.missing = [], hashing.CHUNK_BYTES
        if len(self.pending) > MAX_PENDING:
            self.pending[-MAX_PENDING].result()


def write_chunk(file: int, first: int, parts: list[memoryview], running: Any) -> bytes:
    """Write a chunk at its offset and return its digest."""
    at = first
    for part in parts:
        for start in range(0, len(part), BLOCK_BYTES):
            piece = part[start : start + BLOCK_BYTES]
            running.update(piece)
            while piece:
                written = os.pwrite(file, piece, at)
                piece, at = piece[written:], at + written
    if call := sync_file_range():
        call(file, first, at - first, SYNC_FILE_RANGE_WRITE)
    return running.digest()


@cache
def sync_file_range() -> Callable[..., Any] | None:
    """Linux's call that starts writing part of a file to disk: a hint, and None elsewhere."""
    call: Any = getattr(ctypes.CDLL(None), "sync_file_range", None)
    if call is not None:
        call.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    return call
