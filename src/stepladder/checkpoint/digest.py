"""A strong hash of a file, fast enough to be taken of every byte: SHA-256 of the SHA-256 of each
stretch of 8 MiB. Stretches are hashed side by side, which a single running hash cannot be.
"""

from __future__ import annotations

import hashlib
import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

STRETCH = 8 * 2**20
PIECE = 2**18  # read at a time: what was just read is still in the processor's cache
WAITING = 8  # stretches
THREADS = max(2, min(8, os.cpu_count() or 1))


class Digest:
    """Takes a file's bytes in order, hashing in the background; nothing is copied.

    Bytes that wait to be hashed cannot be let go of, so only a few stretches ever wait.
    """

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self.pool = pool
        self.begun: list[Future[bytes]] = []
        self.rest: list[memoryview] = []  # of the stretch that is not full yet
        self.missing = STRETCH

    def update(self, data: memoryview) -> None:
        """Hash these bytes; they must stay as they are until `result`."""
        while data:
            part, data = data[: self.missing], data[self.missing :]
            self.rest.append(part)
            self.missing -= len(part)
            if not self.missing:
                self._start()

    def result(self) -> str:
        if self.rest:
            self._start()
        return hashlib.sha256(b"".join(part.result() for part in self.begun)).hexdigest()

    def _start(self) -> None:
        self.begun.append(self.pool.submit(hash_stretch, self.rest))
        self.rest, self.missing = [], STRETCH
        if len(self.begun) > WAITING:
            self.begun[-WAITING].result()


def hash_stretch(parts: list[memoryview]) -> bytes:
    running = hashlib.sha256()
    for part in parts:
        running.update(part)
    return running.digest()


def hash_bytes(data: bytes) -> str:
    stretches = [data[first : first + STRETCH] for first in range(0, len(data), STRETCH)]
    return hashlib.sha256(b"".join(hashlib.sha256(s).digest() for s in stretches)).hexdigest()


def hash_file(path: Path) -> str:
    """The hash of a file as it is on the disk now.

    Read, not mapped: a disk that fails is then an error, where a mapping would end the process.
    """
    size = path.stat().st_size
    own = threading.local()  # a thread reads into the same memory again and again
    with path.open("rb", buffering=0) as file, ThreadPoolExecutor(THREADS) as pool:

        def one(first: int) -> bytes:
            if not hasattr(own, "memory"):
                own.memory = memoryview(bytearray(PIECE))
            running, at, last = hashlib.sha256(), first, min(first + STRETCH, size)
            while at < last:
                count = os.preadv(file.fileno(), [own.memory[: min(PIECE, last - at)]], at)
                if not count:
                    break  # shorter than it was a moment ago: the hash will tell
                running.update(own.memory[:count])
                at += count
            return running.digest()

        parts = pool.map(one, range(0, size, STRETCH))
        return hashlib.sha256(b"".join(parts)).hexdigest()
