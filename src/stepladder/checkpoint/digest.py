"""A strong hash of a file, fast enough to be taken of every byte: SHA-256 of the SHA-256 of each
stretch of 8 MiB. Stretches are hashed side by side, which a single running hash cannot be.

[Note: hashed where it lies] A stretch is hashed in the system's own copy of the file, mapped for
that long and not copied. A disk that fails under a mapping ends the process. So the system is first
asked to read those bytes, to nowhere: next to nothing where it has them, and an error like any
other where it cannot.
"""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

STRETCH = 8 * 2**20
THREADS = max(3, min(8, os.cpu_count() or 1))  # of a few one waits for the disk
READ = 2**20  # at a time, where a file cannot be sent to nowhere


def hash_bytes(data: bytes) -> str:
    stretches = [data[first : first + STRETCH] for first in range(0, len(data), STRETCH)]
    return hashlib.sha256(b"".join(hashlib.sha256(s).digest() for s in stretches)).hexdigest()


def hash_file(path: Path) -> str:
    """The hash of a file as it is on the disk now."""
    return next(hash_files([path]))


def hash_files(paths: Sequence[Path]) -> Generator[str, None, None]:
    """The hashes of files as they are on the disk now, in order and all side by side."""
    pool = ThreadPoolExecutor(THREADS)
    try:
        begun = []
        for path in paths:
            starts = range(0, path.stat().st_size, STRETCH)
            begun.append(pool.map(partial(hash_stretch, path), starts))
        for parts in begun:
            yield hashlib.sha256(b"".join(parts)).hexdigest()
    finally:  # one that is not what it should be ends this before the rest is read
        pool.shutdown(cancel_futures=True)


def hash_stretch(path: Path, first: int) -> bytes:
    """See [Note: hashed where it lies]."""
    # A handle of its own: the system reads ahead for each, and there may be thousands of files.
    with path.open("rb", buffering=0) as file:
        handle = file.fileno()
        length = min(STRETCH, os.fstat(handle).st_size - first)
        if length <= 0 or not bring(handle, first, length):
            return b""  # shorter than it was a moment ago: the hash will tell
        how = {"flags": mmap.MAP_PRIVATE, "prot": mmap.PROT_READ, "offset": first}
        with mmap.mmap(handle, length, **how) as seen:
            return hashlib.sha256(seen).digest()


def bring(file: int, first: int, length: int) -> bool:
    """Have the system read a part of a file, and raise where it cannot; whether all of it came."""
    last = first + length
    with open(os.devnull, "wb", buffering=0) as nowhere:
        while first < last:
            try:
                came = os.sendfile(nowhere.fileno(), file, first, last - first)
            except OSError:  # some systems send to sockets alone; what cannot be read raises here
                came = len(os.pread(file, min(READ, last - first), first))
            if not came:
                return False
            first += came
    return True
