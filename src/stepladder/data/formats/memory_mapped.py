"""Memory-mapped token files: raw ids in a `.bin` file, or a flat array in a `.npy` file."""

from __future__ import annotations

import mmap
from functools import partial
from pathlib import Path

import numpy as np

from stepladder.errors import DataError, nearest

from .data_files import unreadable_data
from .token_pieces import OpenPiece, TokenPiece

ID_DTYPES = {
    "uint8": np.uint8,
    "uint16": np.uint16,
    "uint32": np.uint32,
    "int32": np.int32,
    "int64": np.int64,
}


HEAD_IDS, MIN_DISTINCT_IDS = 4096, 16  # ids checked per file; distinct ones that look like text


def id_dtype(name: str) -> np.dtype:
    """The numpy dtype of ids that a word names."""
    if name not in ID_DTYPES:
        raise DataError("dtype", f"'{name}' is not a type of token id", nearest(name, ID_DTYPES))
    return np.dtype(ID_DTYPES[name])


def mapped_piece(path: Path, dtype: str) -> TokenPiece:
    """A memory-mapped `.bin` or `.npy` file as one piece."""
    kind = id_dtype(dtype)
    tokens = _map(path, kind)
    if path.suffix != ".npy":  # which says itself what it holds
        _check_dtype(path, tokens[:HEAD_IDS])
    opening, size = partial(_open, path, kind), path.stat().st_size
    return TokenPiece(
        path, f"'{path}'", len(tokens), tokens.dtype, opening, documents=False, size=size
    )


def map_file(path: Path, kind: np.dtype, offset: int = 0) -> np.ndarray:
    """Map a file from `offset` on as numbers of this dtype."""
    with open(path, "rb") as file:
        held = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    # Windows are drawn at random: read-ahead would cost more than the window itself.
    held.madvise(mmap.MADV_RANDOM)
    return np.frombuffer(held, kind, offset=offset)


def _open(path: Path, kind: np.dtype) -> OpenPiece:
    return OpenPiece(_map(path, kind), None)


def _map(path: Path, kind: np.dtype) -> np.ndarray:
    try:
        if path.suffix == ".npy":
            array = _flat(np.load(path, mmap_mode="r", allow_pickle=False), path)
            return map_file(path, array.dtype, array.offset)
        _check_size(path, kind)
        return map_file(path, kind)
    except (OSError, ValueError) as error:
        raise unreadable_data(path, "token file", error) from error


def _flat(array: np.memmap, path: Path) -> np.memmap:
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise DataError(
            "token file",
            f"'{path}' holds {array.dtype} of shape {array.shape}",
            "Save one flat row of integers.",
        )
    return array


def _check_dtype(path: Path, head: np.ndarray) -> None:
    """Refuse ids that are read with a narrower type than they were written: every other is 0."""
    written = next((n for n in (4, 2) if not any(head[i::n].any() for i in range(1, n))), 1)
    if written > 1 and len(head) >= 1024 and len(np.unique(head[::written])) >= MIN_DISTINCT_IDS:
        zeros = "a zero" if written == 2 else f"{written - 1} zeros"
        raise DataError(
            "dtype",
            f"'{path}' read as {head.dtype} has {zeros} after each id, so each was written in "
            f"{head.dtype.itemsize * written} bytes",
            f"Name that type: dtype='{_wider(head.dtype, written)}' (data.dtype in a recipe).",
        )


def _wider(kind: np.dtype, times: int) -> str:
    return {2: "uint16", 4: "uint32", 8: "int64"}.get(kind.itemsize * times, "int64")


def _check_size(path: Path, kind: np.dtype) -> None:
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
