"""Token files: memory-mapped ids, cut into windows of inputs and next tokens.

Window i is tokens[i*length : i*length + length + 1]; its inputs are all but the last, its targets
all but the first. So each token is a target once per epoch, and only windows in use are copied.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from stepladder.data.packing import EndTokenDocuments, PackedRows, Tokens
from stepladder.data.sample_order import Integers
from stepladder.errors import DataError

from .data_files import existing_path
from .memory_mapped import mapped_piece
from .token_pieces import MAX_OPEN, JoinedPieces, TokenPiece


class TokenWindows:
    """Windows of `length` tokens over a long sequence of ids."""

    def __init__(self, tokens: Tokens, length: int, *, name: str = "tokens") -> None:
        check_window(len(tokens), length, name)
        self.tokens, self.length, self.name = tokens, length, name

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if not 0 <= index < len(self):
            raise IndexError(index)  # a for loop over a sequence ends on this
        inputs, targets = self.fetch(np.array([index]))
        return inputs[0], targets[0]

    def fetch(self, indices: Integers) -> tuple[torch.Tensor, torch.Tensor]:
        inputs = np.empty((len(indices), self.length), np.int64)
        targets = np.empty_like(inputs)
        for row, index in enumerate(indices.tolist()):  # slices, since a fancy index copies twice
            start = index * self.length
            window = self.tokens[start : start + self.length + 1]
            inputs[row], targets[row] = window[:-1], window[1:]
        return torch.from_numpy(inputs), torch.from_numpy(targets)

    def where(self, index: int) -> str:
        return f"tokens {index * self.length} to {(index + 1) * self.length} of {self.name}"


class TokenRows:
    """Windows, or rows of packed documents, over joined pieces."""

    def __init__(
        self,
        pieces: Sequence[TokenPiece],
        length: int,
        *,
        packed: bool,
        document_end: int | None,
        vocabulary: int | None,
        max_open: int = MAX_OPEN,
    ) -> None:
        self.length, self.vocabulary, self.name = length, vocabulary, _name(pieces)
        tokens = JoinedPieces(pieces, max_open)
        check_window(len(tokens), length, self.name)
        if vocabulary is not None:
            _check_width(pieces, vocabulary)
            if not any(piece.decoded for piece in pieces):
                check_ids(_sample_ids(tokens, length), vocabulary, self.name)
        self._rows: TokenWindows | PackedRows
        if document_end is not None:
            _check_end(pieces, document_end, vocabulary)
            documents = EndTokenDocuments(tokens, document_end, tokens.borders())
            self._rows = PackedRows(tokens, documents, length, name=self.name)
        elif packed:
            _check_documents(pieces)
            self._rows = PackedRows(tokens, tokens, length, name=self.name)
        else:
            self._rows = TokenWindows(tokens, length, name=self.name)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Any:
        return self._rows[index]

    def fetch(self, indices: Integers) -> Any:
        inputs, targets = self._rows.fetch(indices)
        if self.vocabulary is not None:
            ids = inputs["tokens"] if isinstance(inputs, dict) else inputs
            check_ids(ids.numpy(), self.vocabulary, self.name)
        return inputs, targets

    def where(self, index: int) -> str:
        return self._rows.where(index)


class TokenFile(TokenRows):
    """Windows of a `.bin` (raw ids) or `.npy` file; with `document_end`, packed documents."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        length: int,
        dtype: str = "uint16",
        *,
        document_end: int | None = None,
        vocabulary: int | None = None,
    ) -> None:
        self.path = existing_path(path, "token file")
        super().__init__(
            [mapped_piece(self.path, dtype)],
            length,
            packed=False,
            document_end=document_end,
            vocabulary=vocabulary,
        )


def check_window(num_tokens: int, length: int, name: str) -> None:
    """Refuse a window that does not fit into the tokens there are."""
    if length < 1:
        raise DataError("length", f"{length} is not a number of tokens", "Use at least 1.")
    if num_tokens == 0:
        raise DataError("tokens", f"{name} is empty", "Give a file with at least two tokens.")
    if num_tokens < length + 1:
        raise DataError(
            "length",
            f"{name} has {num_tokens} tokens and one window needs {length + 1}",
            f"Use length={num_tokens - 1} or less." if num_tokens > 1 else "Give more text.",
        )


def check_ids(ids: np.ndarray, vocabulary: int, name: str) -> None:
    """Refuse ids outside the vocabulary."""
    least, largest = int(ids.min()), int(ids.max())
    if least < 0:
        raise DataError(
            "vocabulary",
            f"{name} holds the id {least}, which is below 0",
            "Name the dtype it was written with.",
        )
    if largest >= vocabulary:
        raise DataError(
            "vocabulary",
            f"{name} holds token {largest} and the vocabulary ends at {vocabulary - 1}",
            f"Use vocabulary={largest + 1} or more, or the dtype the file was written with.",
        )


def _name(pieces: Sequence[TokenPiece]) -> str:
    first, last = f"'{pieces[0].path}'", f"'{pieces[-1].path}'"
    return first if first == last else f"{first} to {last}"


def _check_width(pieces: Sequence[TokenPiece], vocabulary: int) -> None:
    for piece in pieces:
        largest = int(np.iinfo(piece.kind).max)
        if vocabulary > largest + 1:
            raise DataError(
                "dtype",
                f"{piece.kind} holds ids up to {largest} and the vocabulary has {vocabulary}, so "
                f"{piece.name} was not written for it",
                "Use dtype='uint32', or the vocabulary the file was written with.",
            )


def _check_end(pieces: Sequence[TokenPiece], end: int, vocabulary: int | None) -> None:
    """Refuse an end token that no file can contain: all documents would be one."""
    ids = min(int(np.iinfo(piece.kind).max) + 1 for piece in pieces)
    ids = ids if vocabulary is None else min(ids, vocabulary)
    if not 0 <= end < ids:
        raise DataError(
            "document_end",
            f"{end} is not an id: they go from 0 to {ids - 1} here",
            "Name the id that ends each document.",
        )


def _check_documents(pieces: Sequence[TokenPiece]) -> None:
    for piece in pieces:
        if not piece.documents:
            raise DataError(
                "packed",
                f"{piece.name} does not say where documents begin",
                "Name the id that ends each: document_end=0 (data.document_end in a recipe).",
            )


def _sample_ids(tokens: Tokens, length: int) -> np.ndarray:
    """Ids from the head and 64 places of the file: enough to notice a wrong dtype, no full scan."""
    places = np.linspace(0, len(tokens) - length, 64, dtype=np.int64)
    parts = [tokens[: 1 << 16], *(tokens[place : place + length] for place in places.tolist())]
    return np.concatenate(parts)
