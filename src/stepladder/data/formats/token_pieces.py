"""A long sequence of token ids stored in pieces: shard files, or row groups of a table.

It has a length and can be sliced, which is all that windows and packed rows need. A piece is opened
when one of its tokens is first used; the lengths of all pieces are known before, so that any
position is found by binary search.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import numpy as np

from stepladder.data.packing import Documents, Tokens
from stepladder.errors import DataError

MAX_OPEN = 256  # pieces open at a time, because a process may open only so many files


class OpenPiece(NamedTuple):
    """The contents of an opened piece."""

    tokens: Tokens
    documents: Documents | None  # None if the format does not say where they begin


@dataclass(frozen=True, slots=True)
class TokenPiece:
    """A piece of the sequence, as known before it is opened."""

    path: Path
    name: str  # for messages
    length: int  # in tokens
    kind: np.dtype
    open: Callable[[], OpenPiece]  # must pickle: each worker process opens its own
    documents: bool  # whether the format says where documents begin
    decoded: bool = False  # decoded into memory when opened, rather than mapped
    size: int = 0  # of a mapped file, in bytes, to notice truncation

    @property
    def decoded_bytes(self) -> int:
        return self.length * self.kind.itemsize if self.decoded else 0

    def check(self) -> None:
        """Refuse a file that was truncated since it was mapped: reading past its end is SIGBUS.

        A removed file stays readable through its mapping.
        """
        try:
            now = os.stat(self.path).st_size if self.size else 0
        except FileNotFoundError:
            return
        if now < self.size:
            raise DataError(
                "token file",
                f"'{self.path}' has {now} bytes and had {self.size} when it was opened",
                "Restore it; a run goes on from its last checkpoint.",
            )


class JoinedPieces:
    """Pieces joined end to end; `tokens[a:b]` copies only if it crosses pieces."""

    def __init__(self, pieces: Sequence[TokenPiece], max_open: int = MAX_OPEN) -> None:
        self.pieces, self.max_open = list(pieces), max_open
        self.ends = np.cumsum([piece.length for piece in self.pieces], dtype=np.int64)
        self._reset()
        if len(self.pieces) <= max_open and not any(piece.decoded for piece in self.pieces):
            for number in range(len(self.pieces)):
                self.opened(number)  # a mapping outlives the removal of its file

    def __len__(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    def __getitem__(self, part: slice) -> np.ndarray:
        begin, end, _ = part.indices(len(self))
        found = [
            self.opened(number).tokens[first:last]
            for number, _, first, last in self._crossed(begin, end)
        ]
        if not found:
            return np.empty(0, np.int64)
        return found[0] if len(found) == 1 else np.concatenate(found)

    def between(self, begin: int, end: int) -> np.ndarray:
        """Where documents begin, from `begin` up to `end`."""
        found = [np.empty(0, np.int64)]
        for number, border, first, last in self._crossed(begin, end):
            documents = self.opened(number).documents
            assert documents is not None  # packing checks every piece first
            found.append(documents.between(first, last) + border)
        return np.concatenate(found)

    def borders(self) -> np.ndarray:
        """Where each file begins: no document continues from one file into the next."""
        starts = np.concatenate([[0], self.ends[:-1]])
        paths = [piece.path for piece in self.pieces]
        first = [number == 0 or path != paths[number - 1] for number, path in enumerate(paths)]
        return starts[first]

    def opened(self, number: int) -> OpenPiece:
        """A piece, opened if it is not open."""
        with self._lock:
            held = self._open_pieces.pop(number, None)
            if held is not None:
                self._open_pieces[number] = held  # the last used goes last
        if held is None:
            held = self._open(self.pieces[number])
            with self._lock:
                while len(self._open_pieces) >= self.max_open:
                    del self._open_pieces[next(iter(self._open_pieces))]
                self._open_pieces[number] = held
        self.pieces[number].check()
        return held

    @staticmethod
    def _open(piece: TokenPiece) -> OpenPiece:
        held = piece.open()
        if len(held.tokens) != piece.length:
            raise DataError(
                "tokens",
                f"{piece.name} holds {len(held.tokens)} ids, and {piece.length} were counted at "
                "the start",
                "It was written again, or its table of contents is wrong: write it anew.",
            )
        return held

    def _crossed(self, begin: int, end: int) -> Iterator[tuple[int, int, int, int]]:
        """Each piece that a token range crosses: its number, its start, and the range within it."""
        number = int(self.ends.searchsorted(begin, side="right"))
        while begin < end:
            border = int(self.ends[number - 1]) if number else 0
            stop = min(end, int(self.ends[number]))
            yield number, border, begin - border, stop - border
            begin, number = stop, number + 1

    def _reset(self) -> None:
        self._open_pieces: dict[int, OpenPiece] = {}  # in the order they were last used
        self._lock = Lock()

    def __getstate__(self) -> dict[str, Any]:
        """Everything but the open pieces: each worker process opens its own."""
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._reset()
