"""Megatron's indexed files: `NAME.bin` holds ids, `NAME.idx` where each document begins.

The index is a header (magic, version, type of ids, number of sequences and of document bounds),
then the sequences' lengths, their byte offsets, and the number of each document's first sequence.
It is memory-mapped and searched in place, since reading it whole would take time per document.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from functools import partial
from pathlib import Path

import numpy as np

from stepladder.errors import DataError

from .data_files import existing_path, unreadable_data
from .memory_mapped import map_file
from .token_pieces import OpenPiece, TokenPiece

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
HEADER = struct.Struct("<9sQBQQ")
DTYPES = {1: np.uint8, 2: np.int8, 3: np.int16, 4: np.int32, 5: np.int64, 8: np.uint16}


class MegatronIndex:
    """A memory-mapped Megatron index."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            held = map_file(path, np.dtype(np.uint8))
        except (OSError, ValueError) as error:
            raise unreadable_data(path, "token index", error) from error
        if len(held) < HEADER.size or bytes(held[: len(MAGIC)]) != MAGIC:
            raise _broken(path, "does not begin as Megatron's indexes do")
        _, version, code, sequences, bounds = HEADER.unpack(bytes(held[: HEADER.size]))
        if version != VERSION or code not in DTYPES:
            raise _broken(path, f"is of version {version} with ids of type {code}")
        wanted = HEADER.size + 12 * sequences + 8 * bounds
        if len(held) < wanted or not sequences or not bounds:
            raise _broken(path, f"has {len(held)} bytes and its header asks for {wanted}")
        self.kind = np.dtype(DTYPES[code])
        rest = held[HEADER.size :]
        lengths = rest[: 4 * sequences].view("<i4")
        self.offsets = rest[4 * sequences : 12 * sequences].view("<i8")
        self.firsts = rest[12 * sequences : 12 * sequences + 8 * bounds].view("<i8")
        self.tokens = int(self.offsets[-1]) // self.kind.itemsize + int(lengths[-1])

    def between(self, begin: int, end: int) -> np.ndarray:
        """Where documents begin, from `begin` up to `end`."""
        # bisect, because the table is not aligned and numpy's searchsorted would copy all of it.
        bounds = range(len(self.firsts))
        first = bisect_left(bounds, begin, key=self._start)
        last = bisect_left(bounds, min(end, self.tokens), lo=first, key=self._start)
        found = self.firsts[first:last]
        if len(found) and not 0 <= found.min() <= found.max() < len(self.offsets):
            raise _broken(self.path, f"has a document that begins in sequence {found.max()}")
        starts = self.offsets[found] // self.kind.itemsize
        if len(starts) and not (begin <= starts[0] and starts[-1] < end and is_rising(starts)):
            raise _broken(self.path, f"has documents out of order between {begin} and {end}")
        return starts

    def _start(self, number: int) -> int:
        first = int(self.firsts[number])
        if first >= len(self.offsets):  # the last bound, and empty documents before it
            return self.tokens
        return int(self.offsets[first]) // self.kind.itemsize


def is_rising(places: np.ndarray) -> bool:
    return bool((places[1:] >= places[:-1]).all())


def indexed_piece(path: Path, dtype: str | None) -> TokenPiece:
    """The ids of a `.bin` file, after checking that its `.idx` file agrees."""
    where = existing_path(path.with_suffix(".idx"), "token index")
    index, size = MegatronIndex(where), path.stat().st_size
    if index.tokens * index.kind.itemsize != size:
        needed = index.tokens * index.kind.itemsize
        raise _broken(
            where, f"tells of {index.tokens} ids, {needed} bytes, and the file has {size}"
        )
    if dtype is not None and np.dtype(dtype) != index.kind:
        raise DataError(
            "dtype",
            f"{dtype} is asked for and '{where}' says {index.kind}",
            "Leave it out: the index knows.",
        )
    opening = partial(_open, path, where)
    return TokenPiece(
        path, f"'{path}'", index.tokens, index.kind, opening, documents=True, size=size
    )


def _open(path: Path, where: Path) -> OpenPiece:
    index = MegatronIndex(where)
    return OpenPiece(map_file(path, index.kind), index)


def _broken(index: Path, problem: str) -> DataError:
    return DataError("token index", f"'{index}' {problem}", "Write both files again.")
