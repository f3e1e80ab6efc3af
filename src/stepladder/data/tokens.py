"""Token files: memory-mapped ids, cut into windows of inputs and next tokens.

Window i is tokens[i*length : i*length + length + 1]; its inputs are all but the last, its targets
all but the first. So each token is a target once per epoch and nothing is copied before it is asked
for.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stepladder.errors import DataError, nearest

from .files import existing, unreadable
from .order import Integers
from .pack import PackedRows, document_starts

WIDTHS = {
    "uint8": np.uint8,
    "uint16": np.uint16,
    "uint32": np.uint32,
    "int32": np.int32,
    "int64": np.int64,
}


class Windows:
    """Windows of `length` tokens over one long row of ids."""

    def __init__(self, tokens: np.ndarray, length: int, *, name: str = "tokens") -> None:
        check_window(len(tokens), length, name)
        self.tokens, self.length, self.name = np.asarray(tokens), length, name

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
            inputs[row] = self.tokens[start : start + self.length]
            targets[row] = self.tokens[start + 1 : start + 1 + self.length]
        return torch.from_numpy(inputs), torch.from_numpy(targets)

    def where(self, index: int) -> str:
        return f"tokens {index * self.length} to {(index + 1) * self.length} of {self.name}"


class TokenFile:
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
        self.path, self.length, self.dtype = existing(path, "token file"), length, _width(dtype)
        self.document_end, self.vocabulary = document_end, vocabulary
        self.size = self.path.stat().st_size
        tokens = self._map()
        check_window(len(tokens), length, f"'{self.path}'")
        if vocabulary is not None:
            _check_width(tokens.dtype, vocabulary, self.path)
            _check_ids(_spread(tokens, length), vocabulary, self.path)
        self._starts = None if document_end is None else document_starts(tokens, document_end)
        self._rows = self._cut(tokens)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Any:
        self._check_length()
        return self._rows[index]

    def fetch(self, indices: Integers) -> Any:
        self._check_length()
        inputs, targets = self._rows.fetch(indices)
        if self.vocabulary is not None:
            ids = inputs["tokens"] if isinstance(inputs, dict) else inputs
            _check_ids(ids.numpy(), self.vocabulary, self.path)
        return inputs, targets

    def where(self, index: int) -> str:
        return self._rows.where(index)

    def _check_length(self) -> None:
        """Refuse a file that was cut since it was mapped: reading beyond its end kills a process.

        One that was removed is still there for those that mapped it.
        """
        with suppress(FileNotFoundError):
            now = self.path.stat().st_size
            if now < self.size:
                raise DataError(
                    "token file",
                    f"'{self.path}' has {now} bytes and had {self.size} when it was opened",
                    "Restore it; a run goes on from its last checkpoint.",
                )

    def __getstate__(self) -> dict[str, Any]:
        """Everything but the map: a pickled map would carry the whole file to each worker."""
        return {name: value for name, value in vars(self).items() if name != "_rows"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._rows = self._cut(self._map())

    def _cut(self, tokens: np.ndarray) -> Windows | PackedRows:
        if self._starts is None:
            return Windows(tokens, self.length, name=f"'{self.path}'")
        return PackedRows(tokens, self._starts, self.length, name=f"'{self.path}'")

    def _map(self) -> np.ndarray:
        try:
            if self.path.suffix == ".npy":
                return _flat(np.load(self.path, mmap_mode="r", allow_pickle=False), self.path)
            _check_whole(self.path, self.dtype)
            return np.memmap(self.path, self.dtype, "r")
        except (OSError, ValueError) as error:
            raise unreadable(self.path, "token file", error) from error


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


def _width(name: str) -> np.dtype:
    if name not in WIDTHS:
        raise DataError("dtype", f"'{name}' is not a type of token id", nearest(name, WIDTHS))
    return np.dtype(WIDTHS[name])


def _flat(array: np.ndarray, path: Path) -> np.ndarray:
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise DataError(
            "token file",
            f"'{path}' holds {array.dtype} of shape {array.shape}",
            "Save one flat row of integers.",
        )
    return array


def _check_whole(path: Path, dtype: np.dtype) -> None:
    size = path.stat().st_size
    if size % dtype.itemsize:
        raise DataError(
            "dtype",
            f"'{path}' has {size} bytes, which is not a whole number of {dtype} ids "
            f"({dtype.itemsize} bytes each)",
            "Name the type it was written with.",
        )
    if size == 0:
        raise DataError("tokens", f"'{path}' is empty", "Write it again.")


def _check_width(dtype: np.dtype, vocabulary: int, path: Path) -> None:
    largest = int(np.iinfo(dtype).max)
    if vocabulary > largest + 1:
        raise DataError(
            "dtype",
            f"{dtype} holds ids up to {largest} and the vocabulary has {vocabulary}, so '{path}' "
            "was not written for it",
            "Use dtype='uint32', or the vocabulary the file was written with.",
        )


def _check_ids(ids: np.ndarray, vocabulary: int, path: Path) -> None:
    largest = int(ids.max())
    if largest >= vocabulary:
        raise DataError(
            "vocabulary",
            f"'{path}' holds token {largest} and the vocabulary ends at {vocabulary - 1}",
            f"Use vocabulary={largest + 1} or more, or the dtype the file was written with.",
        )


def _spread(tokens: np.ndarray, length: int) -> np.ndarray:
    """The head of the file and 64 places in it: a wrong type shows, and no scan is needed."""
    places = np.linspace(0, len(tokens) - length, 64, dtype=np.int64)
    parts = [tokens[: 1 << 16], *(tokens[place : place + length] for place in places.tolist())]
    return np.concatenate(parts)
