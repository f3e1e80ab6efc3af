"""Packing: documents concatenated and cut into rows of one length, with document numbers.

A row's inputs are three tensors: `tokens`; `documents`, the number of each token's document within
the row, so that attention can stay inside it; and `positions` within the document, which restart at
the start of a row since the model cannot see what came before. The target at a document's last
token would be the first of another document, so it is -100. Nothing is padded, and only the last,
incomplete row is dropped.

Fitting whole documents into bins was not used: it pads, and truncates long documents.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch

from stepladder.errors import DataError

from .sample_order import Integers

IGNORED = -100  # torch's cross entropy ignores it


class Tokens(Protocol):
    """A long sequence of token ids: an array, or pieces that are opened on demand."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> np.ndarray: ...


class Documents(Protocol):
    """Where documents begin, looked up one row at a time so that nothing is scanned first."""

    def between(self, begin: int, end: int) -> np.ndarray: ...


class DocumentStarts:
    """Documents whose starts are listed, in rising order."""

    def __init__(self, starts: np.ndarray) -> None:
        self.starts = starts

    def between(self, begin: int, end: int) -> np.ndarray:
        first, last = self.starts.searchsorted((begin, end))
        return self.starts[first:last]


class EndTokenDocuments:
    """Documents that begin after an end-of-document token, and at file boundaries."""

    def __init__(self, tokens: Tokens, end: int, borders: np.ndarray) -> None:
        self.tokens, self.end, self.borders = tokens, end, DocumentStarts(borders)

    def between(self, begin: int, end: int) -> np.ndarray:
        before = max(begin - 1, 0)
        after = np.flatnonzero(self.tokens[before : end - 1] == self.end) + before + 1
        return np.concatenate([after, self.borders.between(begin, end)])


class PackedRows:
    """Rows of `length` tokens over documents."""

    def __init__(
        self, tokens: Tokens, documents: Documents, length: int, *, name: str = "documents"
    ) -> None:
        if len(tokens) < length + 1:
            raise DataError(
                "length",
                f"{name} have {len(tokens)} tokens and one row needs {length + 1}",
                f"Use length={len(tokens) - 1} or less."
                if len(tokens) > 1
                else "Give more documents.",
            )
        self.tokens, self.documents, self.length, self.name = tokens, documents, length, name

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // self.length

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < len(self):
            raise IndexError(index)  # a for loop over a sequence ends on this
        inputs, targets = self.fetch(np.array([index]))
        return {name: tensor[0] for name, tensor in inputs.items()}, targets[0]

    def fetch(self, indices: Integers) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        tokens = np.empty((len(indices), self.length), np.int64)
        targets = np.empty_like(tokens)
        opens = [np.arange(len(indices)) * self.length]  # each row's first token starts a document
        for row, index in enumerate(indices.tolist()):
            begin = index * self.length
            window = self.tokens[begin : begin + self.length + 1]
            tokens[row], targets[row] = window[:-1], window[1:]
            first = self.documents.between(begin + 1, begin + self.length + 1) - begin
            targets[row, first - 1] = IGNORED
            opens.append(first[first < self.length] + row * self.length)
        inputs = {"tokens": tokens, **number_documents(np.concatenate(opens), tokens.shape)}
        return {name: torch.from_numpy(array) for name, array in inputs.items()}, torch.from_numpy(
            targets
        )

    def where(self, index: int) -> str:
        return f"tokens {index * self.length} to {(index + 1) * self.length} of {self.name}"


def pack(documents: Sequence[Any], length: int) -> PackedRows:
    """Pack documents, each a sequence of token ids, into rows of `length`."""
    rows = [np.asarray(document).reshape(-1) for document in documents]
    rows = [row for row in rows if len(row)]
    if not rows:
        raise DataError("documents", "none of them has a token", "Give at least one document.")
    ends = np.cumsum([len(row) for row in rows])
    return PackedRows(
        np.concatenate(rows), DocumentStarts(np.concatenate([[0], ends[:-1]])), length
    )


def number_documents(opens: np.ndarray, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Number the documents of each row from 0, and the tokens of each document from 0.

    `opens` are the places of documents' first tokens with all rows laid end to end.
    """
    firsts, size = np.unique(opens), shape[0] * shape[1]
    lengths = np.diff(firsts, append=size)
    rows = firsts // shape[1]
    numbers = np.arange(len(firsts)) - np.searchsorted(rows, rows)
    positions = np.arange(size) - np.repeat(firsts, lengths)
    return {
        "documents": np.repeat(numbers, lengths).reshape(shape),
        "positions": positions.reshape(shape),
    }
