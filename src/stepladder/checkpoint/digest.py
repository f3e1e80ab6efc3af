"""A strong hash of a file, fast enough to be taken of every byte: SHA-256 of the SHA-256 of each
stretch of 8 MiB. Stretches are hashed side by side, which a single running hash cannot be.
"""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

STRETCH = 8 * 2**20
THREADS = max(2, min(8, os.cpu_count() or 1))


class Digest:
    """Takes a file's bytes in order, hashing in the background."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self.pool = pool
        self.waiting: list[Future[bytes]] = []
        self.rest = bytearray()

    def update(self, data: memoryview) -> None:
        """Hash these bytes; they must stay as they are until `result`."""
        if self.rest:
            missing = STRETCH - len(self.rest)
            self.rest += data[:missing]
            data = data[missing:]
            if len(self.rest) < STRETCH:
                return
            self._start(memoryview(bytes(self.rest)))
            self.rest.clear()
        whole = len(data) // STRETCH * STRETCH
        for first in range(0, whole, STRETCH):
            self._start(data[first : first + STRETCH])
        self.rest += data[whole:]

    def result(self) -> str:
        if self.rest:
            self._start(memoryview(bytes(self.rest)))
            self.rest.clear()
        return hashlib.sha256(b"".join(part.result() for part in self.waiting)).hexdigest()

    def _start(self, stretch: memoryview) -> None:
        self.waiting.append(self.pool.submit(lambda: hashlib.sha256(stretch).digest()))


def hash_bytes(data: bytes) -> str:
    stretches = [data[first : first + STRETCH] for first in range(0, len(data), STRETCH)]
    return hashlib.sha256(b"".join(hashlib.sha256(s).digest() for s in stretches)).hexdigest()


def hash_file(path: Path) -> str:
    """The hash of a file as it is on the disk now."""
    size = path.stat().st_size
    with path.open("rb") as file, ThreadPoolExecutor(THREADS) as pool:

        def one(first: int) -> bytes:
            return hashlib.sha256(os.pread(file.fileno(), STRETCH, first)).digest()

        parts = pool.map(one, range(0, size, STRETCH))
        return hashlib.sha256(b"".join(parts)).hexdigest()
