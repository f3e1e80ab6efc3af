"""Text corpora: the Python standard library's source, or any folder of text, as bytes or tokens.

Every machine that runs stepladder has the standard library, so a first run needs no download. If no
tokenizer is named, a byte is a token (vocabulary 256). With a tokenizer, all text is encoded when
it is opened; write a large corpus to token files once instead.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path
from typing import Literal

import numpy as np

from stepladder.data.packing import DocumentStarts, PackedRows
from stepladder.errors import DataError, nearest

from .data_files import existing_folder, files_below, read_bytes
from .token_files import TokenWindows, check_window
from .tokenize_text import BYTES, encode_texts

ONE_IN = 10  # the last tenth is for validation
NOT_LIBRARY = frozenset(
    {"test", "tests", "idlelib", "lib2to3", "turtledemo", "ensurepip", "__pycache__"}
    | {"site-packages", "dist-packages"}
    | {"encodings", "pydoc_data"}  # tables, not prose or code
)
TEXT_SUFFIXES = (".txt", ".md", ".rst", ".py", ".json", ".html", ".tex")


def text_corpus(
    folder: str | os.PathLike[str] | None = None,
    *,
    length: int = 256,
    split: Literal["train", "validation"] = "train",
    suffixes: tuple[str, ...] | None = None,
    limit_bytes: int | None = None,
    packed: bool = False,
    tokenizer: str = BYTES,
    vocabulary: int | None = None,
) -> TokenWindows | PackedRows:
    """Windows of a folder's text, or of the standard library's Python files.

    `packed` marks where each file begins, so that attention and targets stay within one file.
    `tokenizer` is a tokenizer.json or a folder with one; `vocabulary` is the model's size of it.
    """
    root, suffixes = _root(folder, suffixes)
    without = NOT_LIBRARY if folder is None else frozenset({"__pycache__", ".git"})
    texts = _read(root, suffixes, without, limit_bytes)
    tokens, starts = encode_texts(texts, tokenizer, vocabulary)
    name = f"the {split} part of '{root}'"
    return make_rows(
        tokens, starts, split_range(len(tokens), split), length, packed=packed, name=name
    )


def make_rows(
    tokens: np.ndarray,
    starts: np.ndarray,
    part: tuple[int, int],
    length: int,
    *,
    packed: bool,
    name: str,
) -> TokenWindows | PackedRows:
    """Windows of one part of the tokens, or packed rows of documents that begin at `starts`."""
    begin, end = part
    check_window(end - begin, length, name)
    if not packed:
        return TokenWindows(tokens[begin:end], length, name=name)
    inside = starts[(starts > begin) & (starts < end)] - begin
    documents = DocumentStarts(np.concatenate([[0], inside]))
    return PackedRows(tokens[begin:end], documents, length, name=name)


def _root(
    folder: str | os.PathLike[str] | None, suffixes: tuple[str, ...] | None
) -> tuple[Path, tuple[str, ...]]:
    if folder is None:
        return Path(sysconfig.get_paths()["stdlib"]), suffixes or (".py",)
    return existing_folder(folder, "corpus"), suffixes or TEXT_SUFFIXES


def _read(
    root: Path, suffixes: tuple[str, ...], without: frozenset[str], limit_bytes: int | None
) -> list[bytes]:
    """Every non-empty file, up to the limit in total."""
    texts: list[bytes] = []
    left = sys.maxsize if limit_bytes is None else limit_bytes
    for path in files_below(root, suffixes, without):
        if left <= 0:
            break
        text = read_bytes(path, "corpus")[:left]
        if text:
            texts.append(text)
            left -= len(text)
    if not texts:
        raise DataError(
            "corpus",
            f"'{root}' holds no text in files ending {', '.join(suffixes)}",
            "Name the endings to read: text_corpus(folder, suffixes=('.txt',)).",
        )
    return texts


def split_range(num_tokens: int, split: str) -> tuple[int, int]:
    """The token range of one split: contiguous, so that no window is in both."""
    border = num_tokens - num_tokens // ONE_IN
    parts = {"train": (0, border), "validation": (border, num_tokens)}
    if split not in parts:
        raise DataError("split", f"'{split}' is not a part of the corpus", nearest(split, parts))
    return parts[split]
