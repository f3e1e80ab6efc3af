"""Hashing whole files quickly: the hash of the hashes of a file's 8 MiB chunks.

Chunks are hashed, and written, in parallel, which one running hash does not allow. The algorithm is
BLAKE3, three times as fast on a core as SHA-256. Where the blake3 package is missing, as in some
cluster images, SHA-256 is used; a file's entry in the manifest names the algorithm.

[Note: hashing in the page cache] A chunk is hashed through a memory mapping, without a copy. A disk
that fails under a mapping kills the process with SIGBUS. So the bytes are first read into the page
cache with sendfile to /dev/null: nearly free if they are cached, and an ordinary OSError if the
disk fails.
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
CHUNK_BYTES = 8 * 2**20
THREADS = max(3, min(8, os.cpu_count() or 1))  # at least 3, because one of them waits for the disk
READ_BYTES = 2**20  # per read where sendfile cannot write to /dev/null


def available_hashes() -> dict[str, Callable[..., Any]]:
    """The installed hash algorithms by name, the default first."""
    strong = {BLAKE3: blake3} if blake3 is not None else {}
    return {**strong, SHA256: hashlib.sha256}


def default_hash() -> str:
    """The algorithm that this installation writes with."""
    return next(iter(available_hashes()))


def hash_bytes(data: bytes, name: str) -> str:
    """The hash of a file with these contents."""
    chunks = [data[first : first + CHUNK_BYTES] for first in range(0, len(data), CHUNK_BYTES)]
    algorithm = available_hashes()[name]
    return algorithm(b"".join(algorithm(chunk).digest() for chunk in chunks)).hexdigest()


def hash_files(files: Sequence[tuple[Path, str]]) -> Generator[str, None, None]:
    """Hash files on disk in parallel, each with the algorithm named; digests come in order."""
    pool = ThreadPoolExecutor(THREADS)
    try:
        begun = []
        for path, name in files:
            algorithm, starts = available_hashes()[name], range(0, path.stat().st_size, CHUNK_BYTES)
            begun.append((algorithm, pool.map(partial(hash_chunk, path, algorithm), starts)))
        for algorithm, digests in begun:
            yield algorithm(b"".join(digests)).hexdigest()
    finally:  # a caller that finds a wrong digest closes this before the rest is read
        pool.shutdown(cancel_futures=True)


def hash_chunk(path: Path, algorithm: Callable[..., Any], first: int) -> bytes:
    """The digest of one chunk of a file; see [Note: hashing in the page cache]."""
    # A handle per chunk: the kernel reads ahead per handle, and there may be thousands of files.
    with path.open("rb", buffering=0) as file:
        handle = file.fileno()
        length = min(CHUNK_BYTES, os.fstat(handle).st_size - first)
        if length <= 0 or not read_into_page_cache(handle, first, length):
            return b""  # the file was truncated meanwhile: its hash will not match
        options = {"flags": mmap.MAP_PRIVATE, "prot": mmap.PROT_READ, "offset": first}
        with mmap.mmap(handle, length, **options) as mapped:
            return algorithm(mapped).digest()


def read_into_page_cache(file: int, first: int, length: int) -> bool:
    """Read part of a file into the page cache; False if the file ends before it."""
    last = first + length
    with open(os.devnull, "wb", buffering=0) as null:
        while first < last:
            try:
                read = os.sendfile(null.fileno(), file, first, last - first)
            except OSError:  # some systems send only to sockets; a failed disk raises in pread too
                read = len(os.pread(file, min(READ_BYTES, last - first), first))
            if not read:
                return False
            first += read
    return True
