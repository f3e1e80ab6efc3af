"""One long row of token ids that lies in several pieces: shards of files, row groups of a table.

It has a length and gives slices, which is all that windows and packed rows ask of their tokens. A
piece is opened when its first token is asked for; how long each is must be known before, so that
any position is found by a search among the pieces, whatever lies in them.
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

KEPT = 256  # maps held open at a time: each holds a file, and a process may open only so many


class Opened(NamedTuple):
    """What a piece holds."""

    tokens: Tokens
    documents: Documents | None  # None where the format does not say where they begin


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece, as known before it is opened."""

    path: Path
    name: str  # for messages
    length: int  # in tokens
    kind: np.dtype
    open: Callable[[], Opened]  # must pickle: each worker opens for itself
    documents: bool  # whether the format says where documents begin
    decoded: bool = False  # it takes memory of its own once open, unlike a map
    size: int = 0  # of a mapped file, in bytes, so that a cut is seen

    @property
    def decoded_bytes(self) -> int:
        return self.length * self.kind.itemsize if self.decoded else 0

    def check(self) -> None:
        """Refuse a file that was cut since it was mapped: reading beyond its end kills a process.

        One that was removed is still there for those that mapped it.
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


class Stretches:
    """Pieces laid end to end; `tokens[a:b]` copies only where it crosses from one into the next."""

    def __init__(self, pieces: Sequence[Piece], kept: int = KEPT) -> None:
        self.pieces, self.kept = list(pieces), kept
        self.ends = np.cumsum([piece.length for piece in self.pieces], dtype=np.int64)
        self._forget()
        if len(self.pieces) <= kept and not any(piece.decoded for piece in self.pieces):
            for number in range(len(self.pieces)):
                self.opened(number)  # a map outlives the removal of its file

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
            assert documents is not None  # whoever packs asks each piece before
            found.append(documents.between(first, last) + border)
        return np.concatenate(found)

    def borders(self) -> np.ndarray:
        """Where each file begins: no document goes on from one file into the next."""
        starts = np.concatenate([[0], self.ends[:-1]])
        paths = [piece.path for piece in self.pieces]
        first = [number == 0 or path != paths[number - 1] for number, path in enumerate(paths)]
        return starts[first]

    def opened(self, number: int) -> Opened:
        """A piece, opened if it is not."""
        with self._lock:
            held = self._held.pop(number, None)
            if held is not None:
                self._held[number] = held  # the last used goes last
        if held is None:
            held = self._open(self.pieces[number])
            with self._lock:
                while len(self._held) >= self.kept:
                    del self._held[next(iter(self._held))]
                self._held[number] = held
        self.pieces[number].check()
        return held

    @staticmethod
    def _open(piece: Piece) -> Opened:
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
        """Each piece that a stretch lies in: its number, where it begins, and the part of it."""
        number = int(self.ends.searchsorted(begin, side="right"))
        while begin < end:
            border = int(self.ends[number - 1]) if number else 0
            stop = min(end, int(self.ends[number]))
            yield number, border, begin - border, stop - border
            begin, number = stop, number + 1

    def _forget(self) -> None:
        self._held: dict[int, Opened] = {}  # in the order they were last used
        self._lock = Lock()

    def __getstate__(self) -> dict[str, Any]:
        """Everything but what is open: each worker opens for itself."""
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._forget()
