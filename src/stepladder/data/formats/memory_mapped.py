"""Mapped files: raw ids in a `.bin` file, or a flat array in a `.npy` file, used where they lie."""

from __future__ import annotations

import mmap
from functools import partial
from pathlib import Path

import numpy as np

from stepladder.errors import DataError, nearest

from .data_files import unreadable
from .token_pieces import Opened, Piece

WIDTHS = {
    "uint8": np.uint8,
    "uint16": np.uint16,
    "uint32": np.uint32,
    "int32": np.int32,
    "int64": np.int64,
}


LOOKED_AT, KINDS_OF_ID = 4096, 16  # ids at the head of a file; so many different ones are text


def width(name: str) -> np.dtype:
    """The type of id that a word names."""
    if name not in WIDTHS:
        raise DataError("dtype", f"'{name}' is not a type of token id", nearest(name, WIDTHS))
    return np.dtype(WIDTHS[name])


def mapped_piece(path: Path, dtype: str) -> Piece:
    """A `.bin` or `.npy` file as one piece."""
    kind = width(dtype)
    tokens = _map(path, kind)
    if path.suffix != ".npy":  # which says itself what it holds
        _check_type(path, tokens[:LOOKED_AT])
    opening, size = partial(_open, path, kind), path.stat().st_size
    return Piece(path, f"'{path}'", len(tokens), tokens.dtype, opening, documents=False, size=size)


def map_file(path: Path, kind: np.dtype, offset: int = 0) -> np.ndarray:
    """A file's bytes from `offset` on, as numbers of this kind."""
    with open(path, "rb") as file:
        held = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    # Windows are drawn from everywhere: reading on behind each costs more than the window itself.
    held.madvise(mmap.MADV_RANDOM)
    return np.frombuffer(held, kind, offset=offset)


def _open(path: Path, kind: np.dtype) -> Opened:
    return Opened(_map(path, kind), None)


def _map(path: Path, kind: np.dtype) -> np.ndarray:
    try:
        if path.suffix == ".npy":
            array = _flat(np.load(path, mmap_mode="r", allow_pickle=False), path)
            return map_file(path, array.dtype, array.offset)
        _check_whole(path, kind)
        return map_file(path, kind)
    except (OSError, ValueError) as error:
        raise unreadable(path, "token file", error) from error


def _flat(array: np.memmap, path: Path) -> np.memmap:
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise DataError(
            "token file",
            f"'{path}' holds {array.dtype} of shape {array.shape}",
            "Save one flat row of integers.",
        )
    return array


def _check_type(path: Path, head: np.ndarray) -> None:
    """Refuse ids that were written wider than they are read: zeros would stand between them."""
    written = next((n for n in (4, 2) if not any(head[i::n].any() for i in range(1, n))), 1)
    if written > 1 and len(head) >= 1024 and len(np.unique(head[::written])) >= KINDS_OF_ID:
        zeros = "a zero" if written == 2 else f"{written - 1} zeros"
        raise DataError(
            "dtype",
            f"'{path}' read as {head.dtype} has {zeros} after each id, so each was written in "
            f"{head.dtype.itemsize * written} bytes",
            f"Name that type: dtype='{_wider(head.dtype, written)}' (data.dtype in a recipe).",
        )


def _wider(kind: np.dtype, times: int) -> str:
    return {2: "uint16", 4: "uint32", 8: "int64"}.get(kind.itemsize * times, "int64")


def _check_whole(path: Path, kind: np.dtype) -> None:
    size = path.stat().st_size
    if size % kind.itemsize:
        raise DataError(
            "dtype",
            f"'{path}' has {size} bytes, which is not a whole number of {kind} ids "
            f"({kind.itemsize} bytes each)",
            "Name the type it was written with.",
        )
    if size == 0:
        raise DataError("tokens", f"'{path}' is empty", "Write it again.")
