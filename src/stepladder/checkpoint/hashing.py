"""A strong hash of a file, fast enough to be taken of every byte: of the hashes of each stretch of
8 MiB. Stretches are hashed, and written, side by side, which a single running hash cannot be.

The hash is BLAKE3, three times as fast on a core as SHA-256. Where its package cannot be imported,
as on a cluster's own image, SHA-256 is taken instead; a file's entry in the manifest names which.

[Note: hashed where it lies] A stretch is hashed in the system's own copy of the file, mapped for
that long and not copied. A disk that fails under a mapping ends the process. So the system is first
asked to read those bytes, to nowhere: next to nothing where it has them, and an error like any
other where it cannot.
"""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

try:
    from blake3 import blake3
except ImportError:
    blake3 = None  # type: ignore[assignment,misc]

BLAKE3, SHA256 = "blake3", "sha256"
STRETCH = 8 * 2**20
THREADS = max(3, min(8, os.cpu_count() or 1))  # of a few one waits for the disk
READ = 2**20  # at a time, where a file cannot be sent to nowhere


def hashes() -> dict[str, Callable[..., Any]]:
    """The hashes that this installation can take, the one it writes with first."""
    strong = {BLAKE3: blake3} if blake3 is not None else {}
    return {**strong, SHA256: hashlib.sha256}


def chosen() -> str:
    """The hash that this installation writes with."""
    return next(iter(hashes()))


def hash_bytes(data: bytes, name: str) -> str:
    stretches = [data[first : first + STRETCH] for first in range(0, len(data), STRETCH)]
    take = hashes()[name]
    return take(b"".join(take(stretch).digest() for stretch in stretches)).hexdigest()


def hash_file(path: Path, name: str) -> str:
    """The hash of a file as it is on the disk now."""
    return next(hash_files([(path, name)]))


def hash_files(files: Sequence[tuple[Path, str]]) -> Generator[str, None, None]:
    """The hashes of files as they are on the disk now, each by the hash named, in order and all
    side by side."""
    pool = ThreadPoolExecutor(THREADS)
    try:
        begun = []
        for path, name in files:
            take, starts = hashes()[name], range(0, path.stat().st_size, STRETCH)
            begun.append((take, pool.map(partial(hash_stretch, path, take), starts)))
        for take, parts in begun:
            yield take(b"".join(parts)).hexdigest()
    finally:  # one that is not what it should be ends this before the rest is read
        pool.shutdown(cancel_futures=True)


def hash_stretch(path: Path, take: Callable[..., Any], first: int) -> bytes:
    """See [Note: hashed where it lies]."""
    # A handle of its own: the system reads ahead for each, and there may be thousands of files.
    with path.open("rb", buffering=0) as file:
        handle = file.fileno()
        length = min(STRETCH, os.fstat(handle).st_size - first)
        if length <= 0 or not bring(handle, first, length):
            return b""  # shorter than it was a moment ago: the hash will tell
        how = {"flags": mmap.MAP_PRIVATE, "prot": mmap.PROT_READ, "offset": first}
        with mmap.mmap(handle, length, **how) as seen:
            return take(seen).digest()


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
