"""A strong hash of a file, fast enough to be taken of every byte: SHA-256 of the SHA-256 of each
stretch of 8 MiB. Stretches are hashed side by side, which a single running hash cannot be.
"""

from __future__ import annotations

import hashlib
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

STRETCH = 8 * 2**20
PIECE = 2**18  # read at a time: what was just read is still in the processor's cache
THREADS = max(3, min(8, os.cpu_count() or 1))  # of a few one waits for the disk


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
